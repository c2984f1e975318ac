"""The attempts of a job: numbered folders below the job's own.

A new folder is made by exactly one caller even when several try, on any shared file system; who
finds a higher number than its own has been replaced. All that the processes of an attempt tell
each other across machines, apart from the training itself, are small files in its folder.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = "attempts"
_CANCEL = "cancel"
_SETTINGS = "launch.json"
_SUPERVISOR = "supervisor.json"
_NODE = "node-"

SILENT_SECONDS = 30.0
"""A process that has not written its record for so long is taken for dead. Clocks of the machines
must agree to within seconds, which torch elastic needs as well."""


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job.

    Attributes:
        folder: Its folder.
        number: Its number, from 1.
    """

    folder: Path
    number: int

    @classmethod
    def begin(cls, job: Path, settings: dict[str, Any]) -> Attempt:
        """Makes the next attempt of a job; the ones before are replaced by it.

        Args:
            job: The job's folder.
            settings: What the processes of the attempt have to know.
        """
        while True:
            last = newest(job)
            number = last.number + 1 if last else 1
            attempt = cls(job / _FOLDER / f"{number:04d}", number)
            attempt.folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                attempt.folder.mkdir()
            except FileExistsError:
                continue
            write_record(attempt.folder / _SETTINGS, settings)
            return attempt

    @classmethod
    def at(cls, folder: Path) -> Attempt:
        """The attempt of a folder."""
        return cls(folder, int(folder.name))

    @property
    def job(self) -> Path:
        """The job's folder."""
        return self.folder.parent.parent

    def settings(self) -> dict[str, Any]:
        """What the processes of the attempt have to know."""
        settings: dict[str, Any] = json.loads((self.folder / _SETTINGS).read_text())
        return settings

    def cancel(self) -> None:
        """Tells all processes of the attempt to end."""
        (self.folder / _CANCEL).touch()

    def must_end(self) -> bool:
        """Whether the attempt was cancelled or replaced."""
        last = newest(self.job)
        return (self.folder / _CANCEL).exists() or (last is not None and last.number > self.number)

    def supervisor_record(self) -> Path:
        """Record of the process that looks after the nodes."""
        return self.folder / _SUPERVISOR

    def node_record(self, node: str) -> Path:
        """Record of a node."""
        return self.folder / f"{_NODE}{node}.json"

    def node_log(self, node: str) -> Path:
        """Log of a node's agent and ranks."""
        return self.folder / f"{_NODE}{node}.log"

    def node_logs(self) -> list[Path]:
        """Logs of all nodes."""
        return sorted(self.folder.glob(f"{_NODE}*.log"))

    def nodes(self) -> list[NodeRecord]:
        """What is known of all nodes, in the order of their names."""
        found = []
        for path in sorted(self.folder.glob(f"{_NODE}*.json")):
            record = read_record(path)
            if record is not None:
                found.append(NodeRecord(**record))
        return found


@dataclass(frozen=True)
class NodeRecord:
    """What a node says about itself.

    Attributes:
        node: Its name.
        host: Address of its machine.
        beat: When it said so, in seconds since 1970.
        status: Exit status of its agent; None while it runs.
    """

    node: str
    host: str
    beat: float
    status: int | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the node's processes run, as far as anybody can tell."""
        return self.status is None and time.time() - self.beat < SILENT_SECONDS


def newest(job: Path) -> Attempt | None:
    """The latest attempt of a job."""
    numbers = [path for path in (job / _FOLDER).glob("[0-9]*") if path.name.isdigit()]
    return Attempt.at(max(numbers)) if numbers else None


def write_record(path: Path, content: dict[str, Any]) -> None:
    """Replaces a small JSON file at once, so that no reader sees half of it."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    partial.write_text(json.dumps(content))
    os.replace(partial, path)


def read_record(path: Path) -> dict[str, Any] | None:
    """Reads such a file; None where there is none."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content
