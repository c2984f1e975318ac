"""Checkpoints of a distributed training, written while the training goes on.

A checkpoint is a folder `step-…` written by `torch.distributed.checkpoint`; each rank writes
its own shards, so it loads at another number of ranks. It counts only once `complete.json`,
written last, is in it; that file names the job and the digest of every other file.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import fsspec
import torch.distributed as dist
import xxhash
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from models import collectives
from models.errors import CheckpointError

MARKER = "complete.json"
_STEP = re.compile(r"^step-(\d{10})$")
_BLOCK = 1 << 22
_log = logging.getLogger(__name__)


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
        self._group = dist.new_group(backend="gloo")
        self._first = collectives.rank() == 0

    def latest(self) -> int | None:
        """Step of the newest usable checkpoint; damaged and unfinished ones are removed.

        Raises:
            CheckpointError: The checkpoints belong to another job. On every rank alike.
        """
        return collectives.first_decides(self._newest)

    def load(self, step: int, state: dict[str, Any]) -> None:
        """Loads a checkpoint into the tensors of `state`, in place.

        Args:
            step: Which checkpoint.
            state: Sharded and whole tensors by name, in the shapes they were saved in; of a
                table that lives on one rank, the other ranks may lack the optimizer state.

        Raises:
            CheckpointError: It cannot be spread over these ranks.
        """
        path = self._path(step)
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
            CheckpointError: The checkpoint before this one could not be written.
        """
        self.finish()
        path = self._path(step)
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
                self._mark(step)
                self._prune()
        except BaseException as error:
            self._error = error
        finally:
            self._finished.set()

    def _mark(self, step: int) -> None:
        path = self._path(step)
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
        steps = self._steps()
        complete = [step for step in steps if self._marker(step) is not None]
        for step in steps:
            # One without a marker is what an earlier removal left behind.
            kept = {*complete[-self._keep :], self.pinned}
            if step < complete[-1] and step not in kept:
                self._discard(step)

    def _discard(self, step: int) -> None:
        path = self._path(step)
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
        for step in reversed(self._steps()):
            marker = self._marker(step)
            if marker is not None and marker.get("digest") != self._digest:
                raise CheckpointError(
                    f"{self._path(step)} was made by another job (digest {marker.get('digest')}, "
                    f"this job's is {self._digest}): give this job a folder of its own"
                )
            if newest is None and marker is not None and self._intact(step, marker):
                newest = step
            elif newest is None:
                _log.warning("checkpoint %s is unfinished or damaged: removed", self._path(step))
                self._files.rm(self._path(step), recursive=True)
        return newest

    def _intact(self, step: int, marker: Mapping[str, Any]) -> bool:
        path = self._path(step)
        names = set(self._names(path))
        return all(
            name in names and self._hash(f"{path}/{name}") == digest
            for name, digest in marker["parts"].items()
        )

    def _marker(self, step: int) -> dict[str, Any] | None:
        try:
            with self._files.open(f"{self._path(step)}/{MARKER}") as stream:
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

    def _steps(self) -> list[int]:
        matches = (_STEP.match(name) for name in self._names(self._root))
        return sorted(int(match[1]) for match in matches if match)

    def _names(self, path: str) -> list[str]:
        if not self._files.exists(path):
            return []
        self._files.invalidate_cache()
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in self._files.ls(path, False))

    def _path(self, step: int) -> str:
        return f"{self._root}/step-{step:010d}"

    def _url(self, path: str) -> str:
        return str(self._files.unstrip_protocol(path))
