"""Checkpoints of a distributed training, written while the training goes on.

A checkpoint is a folder `step-…` written by `torch.distributed.checkpoint`; each rank writes
its own shards, so it loads at another number of ranks. It counts only once `complete.json`,
written last, is in it; that file names the job and the digest of every other file. Where attempts
are numbered (`models/fence.py`), each set of ranks has folders of its own, and ranks that others
have replaced can neither complete a checkpoint nor remove one.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import fsspec
import torch.distributed as dist
import xxhash
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from models import collectives
from models.errors import CheckpointError
from models.fence import Fence

MARKER = "complete.json"
_STEP = re.compile(r"^step-(\d{10})(-[0-9a-f.]+)?$")
_LONGEST = timedelta(hours=1)  # until the slowest rank has written its shards
_BLOCK = 1 << 22
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Checkpoints:
    """The checkpoints of one job.

    Args:
        location: Folder or fsspec URL.
        digest: Digest of the job; checkpoints of another job are refused.
        keep: How many of the newest checkpoints are kept.
    """

    def __init__(self, location: str, digest: str, keep: int) -> None:
        self._files, self._root = fsspec.core.url_to_fs(location)
        self._remote = "://" in location
        self._digest = digest
        self._keep = keep
        self.pinned: int | None = None
        """Step whose checkpoint is kept whatever its age."""
        self._pending: Future[Any] | None = None
        self._finished = threading.Event()
        self._error: BaseException | None = None
        # Of its own, so that a checkpoint in the background cannot mix with the training.
        self._group = dist.new_group(backend="gloo", timeout=_LONGEST)
        self._first = collectives.rank() == 0
        self._fence = Fence(location)
        ranks = self._first_decides(self._fence.enter)
        self._suffix = f"-{ranks}" if ranks else ""

    def latest(self) -> int | None:
        """Step of the newest usable checkpoint; damaged and unfinished ones are removed.

        Raises:
            CheckpointError: The checkpoints belong to another job. On every rank alike.
        """
        return self._first_decides(self._newest)

    def require_place(self) -> None:
        """Makes sure that no other ranks have taken the place of these; every rank calls it.

        Raises:
            FencedError: They have. On every rank alike.
        """
        self._first_decides(self._fence.check)

    def load(self, step: int, state: dict[str, Any]) -> None:
        """Loads a checkpoint into the tensors of `state`, in place.

        Args:
            step: Which checkpoint.
            state: Sharded and whole tensors by name, in the shapes they were saved in; of a
                table that lives on one rank, the other ranks may lack the optimizer state.

        Raises:
            CheckpointError: It cannot be spread over these ranks.
        """
        path = self._first_decides(lambda: self._complete_path(step))
        reader = FsspecReader(self._url(path)) if self._remote else FileSystemReader(path)
        # Names are flat already. DCP's own flattening takes names that only other ranks have for
        # a checkpoint of an old version.
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        try:
            state_dict_loader.load(
                state, storage_reader=reader, planner=planner, process_group=self._group
            )
        except Exception as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be loaded on {collectives.world_size()} ranks: {error}"
            ) from error

    def save(self, step: int, state: Mapping[str, Any], *, wait: bool = False) -> None:
        """Copies the state and writes it in the background; every rank calls it at the same step.

        Args:
            step: Steps taken so far.
            state: As for `load`.
            wait: Whether to return only when the checkpoint is complete.

        Raises:
            CheckpointError: The checkpoint before this one could not be written, or other ranks
                have taken the place of these.
        """
        self.finish()
        self.require_place()
        path = self._path(f"step-{step:010d}{self._suffix}")
        if self._first:
            self._files.makedirs(path, exist_ok=True)
        writer = FsspecWriter(self._url(path)) if self._remote else FileSystemWriter(path)
        self._finished.clear()
        pending = state_dict_saver.async_save(
            dict(state),
            storage_writer=writer,
            planner=DefaultSavePlanner(flatten_state_dict=False),
            process_group=self._group,
        )
        assert isinstance(pending, Future)
        pending.add_done_callback(lambda future: self._complete(step, future))
        self._pending = pending
        if wait:
            self.finish()

    def finish(self) -> None:
        """Waits for the checkpoint that is being written, if there is one.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._pending is None:
            return
        self._finished.wait()
        self._pending = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CheckpointError(f"a checkpoint could not be written: {error}") from error

    def _complete(self, step: int, future: Future[Any]) -> None:
        # Runs in the writer's thread when all ranks have written their shards.
        try:
            future.result()
            if self._first:
                self._fence.check()
                self._mark(step)
                self._prune()
        except BaseException as error:
            self._error = error
        finally:
            self._finished.set()

    def _mark(self, step: int) -> None:
        path = self._path(f"step-{step:010d}{self._suffix}")
        parts = {name: self._hash(f"{path}/{name}") for name in self._names(path) if name != MARKER}
        content = {
            "step": step,
            "digest": self._digest,
            "world_size": collectives.world_size(),
            "parts": parts,
        }
        with self._files.open(f"{path}/{MARKER}.partial", "w") as stream:
            json.dump(content, stream)
        self._files.mv(f"{path}/{MARKER}.partial", f"{path}/{MARKER}")

    def _prune(self) -> None:
        folders = self._folders()
        complete = [step for step, name in folders if self._marker(name) is not None]
        kept = {*sorted(set(complete))[-self._keep :], self.pinned}
        for step, name in folders:
            # One without a marker is what an earlier removal, or a killed rank, left behind.
            if step < complete[-1] and (step not in kept or self._marker(name) is None):
                self._discard(name)

    def _discard(self, name: str) -> None:
        path = self._path(name)
        try:
            if self._files.exists(f"{path}/{MARKER}"):
                # First, because what is half removed must not look complete.
                self._files.rm(f"{path}/{MARKER}")
            self._files.rm(path, recursive=True)
        except Exception as error:
            # The new checkpoint is safe, and this one is tried again after the next.
            _log.warning("old checkpoint %s cannot be removed: %s", path, error)

    def _newest(self) -> int | None:
        newest = None
        for step, name in reversed(self._folders()):
            marker = self._marker(name)
            if marker is not None and marker.get("digest") != self._digest:
                raise CheckpointError(
                    f"{self._path(name)} was made by another job (digest {marker.get('digest')}, "
                    f"this job's is {self._digest}): give this job a folder of its own"
                )
            if newest is None and marker is not None and self._intact(name, marker):
                newest = step
            elif newest is None:
                _log.warning("checkpoint %s is unfinished or damaged: removed", self._path(name))
                self._files.rm(self._path(name), recursive=True)
        return newest

    def _complete_path(self, step: int) -> str:
        names = [name for number, name in self._folders() if number == step and self._marker(name)]
        if not names:
            raise CheckpointError(f"there is no checkpoint of step {step} in {self._root}")
        return self._path(names[-1])

    def _intact(self, name: str, marker: Mapping[str, Any]) -> bool:
        path = self._path(name)
        present = set(self._names(path))
        return all(
            part in present and self._hash(f"{path}/{part}") == digest
            for part, digest in marker["parts"].items()
        )

    def _marker(self, name: str) -> dict[str, Any] | None:
        try:
            with self._files.open(f"{self._path(name)}/{MARKER}") as stream:
                content = json.load(stream)
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return content if isinstance(content, dict) else None

    def _hash(self, path: str) -> str:
        digest = xxhash.xxh3_128()
        with self._files.open(path, "rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()

    def _folders(self) -> list[tuple[int, str]]:
        """Step and name of each folder; of one step, the newest set of ranks comes last."""
        matches = (_STEP.match(name) for name in self._names(self._root))
        return sorted((int(match[1]), match[0]) for match in matches if match)

    def _first_decides(self, work: Callable[[], T]) -> T:
        return collectives.first_decides(work, self._group)

    def _names(self, path: str) -> list[str]:
        if not self._files.exists(path):
            return []
        self._files.invalidate_cache()
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in self._files.ls(path, False))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _url(self, path: str) -> str:
        return str(self._files.unstrip_protocol(path))
