"""Keeps what is left of an earlier attempt of a job away from the job's checkpoints.

A launcher numbers the attempts of a job and tells every rank its number (`TAILTOWER_ATTEMPT`).
A file beside the checkpoints names the newest attempt and, of that attempt, the newest set of
ranks. Ranks that others have replaced, on a host that was cut off or a process that slept, find
another name there and commit nothing. Without a number there is one attempt only, and no fence.
"""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

import fsspec

from models.errors import FencedError

ATTEMPT = "TAILTOWER_ATTEMPT"
"""Environment variable with the number of the attempt, from 1."""


def raise_fence(location: str, attempt: int) -> None:
    """Shuts out all attempts before this one.

    Args:
        location: Folder or fsspec URL of the job's checkpoints.
        attempt: Number of the attempt that begins.
    """
    Fence(location, attempt).enter()


class Fence:
    """The fence of one job's checkpoints, as one set of ranks sees it.

    Args:
        location: Folder or fsspec URL of the job's checkpoints.
        attempt: Number of the attempt; by default what the environment says.
    """

    def __init__(self, location: str, attempt: int | None = None) -> None:
        self._files, root = fsspec.core.url_to_fs(location)
        self._path = f"{root.rstrip('/')}.fence.json"
        self._attempt = int(os.environ.get(ATTEMPT, "0")) if attempt is None else attempt
        self._ranks = ""

    def enter(self) -> str:
        """Takes the place of the ranks before; called on the first rank only.

        Returns:
            The name of this set of ranks; empty without a fence.

        Raises:
            FencedError: A later attempt has begun.
        """
        if self._attempt:
            self._ranks = f"{self._attempt}.{uuid.uuid4().hex[:8]}"
            self._refuse_if_behind(self._read())
            self._write()
        return self._ranks

    def check(self) -> None:
        """Makes sure that no others have taken the place of these ranks; on the first rank only.

        Raises:
            FencedError: They have.
        """
        if not self._attempt:
            return
        found = self._read()
        self._refuse_if_behind(found)
        if found["attempt"] < self._attempt:
            # Ranks of an earlier attempt looked before this one began, and wrote after.
            self._write()
        elif found["ranks"] != self._ranks:
            raise FencedError(f"ranks {self._ranks} were replaced by ranks {found['ranks']}")

    def _refuse_if_behind(self, found: dict[str, Any]) -> None:
        if found["attempt"] > self._attempt:
            raise FencedError(
                f"attempt {self._attempt} of this job was replaced by attempt {found['attempt']}"
            )

    def _read(self) -> dict[str, Any]:
        try:
            with self._files.open(self._path) as stream:
                content: dict[str, Any] = json.load(stream)
        except FileNotFoundError:
            return {"attempt": 0, "ranks": ""}
        return content

    def _write(self) -> None:
        partial = f"{self._path}.{uuid.uuid4().hex[:8]}"
        self._files.makedirs(self._path.rpartition("/")[0], exist_ok=True)
        with self._files.open(partial, "w") as stream:
            json.dump({"attempt": self._attempt, "ranks": self._ranks}, stream)
        self._files.mv(partial, self._path)
