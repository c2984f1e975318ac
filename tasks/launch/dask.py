"""Runs the ranks on the workers of a Dask cluster, one torch elastic agent on each."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from tasks.config import DaskSettings
from tasks.errors import ConfigError
from tasks.launch.attempts import SILENT_SECONDS, Attempt, newest, read_record
from tasks.launch.protocol import JobShape
from tasks.launch.supervised import SupervisedLauncher, job_processes

_SUPERVISOR = "tasks.launch.dask_supervisor"
_END_SECONDS = 60.0


class DaskLauncher(SupervisedLauncher):
    """Torch elastic agents on the workers of a Dask cluster.

    The job's folder must be on a disk that all machines share. A caller on another machine than
    the first meets the job as well: the supervisor's record tells that it is alive.

    Args:
        settings: Where the scheduler is.
        worker: Module that every rank runs with `--job FOLDER/job.json`.

    Raises:
        ConfigError: No scheduler is named.
    """

    def __init__(self, settings: DaskSettings, worker: str = "tasks.train_worker") -> None:
        super().__init__(worker)
        if settings.scheduler is None:
            raise ConfigError(
                "launch.kind: dask needs a running scheduler",
                where="dask.scheduler",
                fix="give its address, or set launch.kind: local",
            )
        self._dask = settings

    def _command(self, attempt: Attempt, shape: JobShape) -> Sequence[str]:
        return [sys.executable, "-m", _SUPERVISOR, "--attempt", str(attempt.folder)]

    def _settings(self, shape: JobShape) -> dict[str, Any]:
        dask = self._dask.model_dump(mode="json")
        return {"shape": asdict(shape), "dask": dask, "worker": self._worker}

    def _is_supervisor(self, process: psutil.Process) -> bool:
        try:
            return _SUPERVISOR in process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def _is_supervised(self, attempt: Attempt) -> bool:
        if super()._is_supervised(attempt):
            return True
        record = read_record(attempt.supervisor_record())
        # On this machine the processes tell better.
        elsewhere = record is not None and record["host"] != socket.gethostname()
        if record is None or not elsewhere or self._has_ended(attempt):
            return False
        return bool(time.time() - record["beat"] < SILENT_SECONDS)

    def _end(self, folder: Path) -> None:
        attempt = newest(folder)
        if attempt is not None:
            attempt.cancel()
            deadline = time.monotonic() + _END_SECONDS
            while time.monotonic() < deadline and self._is_left(attempt):
                time.sleep(0.1)
        super()._end(folder)

    def _is_left(self, attempt: Attempt) -> bool:
        """Whether there is still anything of the attempt."""
        return (
            bool(job_processes(attempt.job))
            or self._is_supervised(attempt)
            or any(node.is_alive for node in attempt.nodes())
        )
