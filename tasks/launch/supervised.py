"""What launchers have in common whose jobs are looked after by a process of this machine.

The process has a session of its own, because a scheduler that loses its task kills the task's
whole process group; training must outlive that and be found again by the retry.
"""

from __future__ import annotations

import fcntl
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from models.fence import ATTEMPT, raise_fence
from tasks.launch.attempts import Attempt, newest
from tasks.launch.processes import JOB, end, members, start_detached
from tasks.launch.protocol import CHECKPOINTS, JobShape, JobStatus

_LOG = "train.log"
_EXIT = "exit_status"
_GRACE_SECONDS = 10.0


class SupervisedLauncher(ABC):
    """A launcher whose jobs have a supervisor: a process of the machine that submits them.

    Args:
        worker: Module that every rank runs with `--job FOLDER/job.json`.
    """

    def __init__(self, worker: str = "tasks.train_worker") -> None:
        self._worker = worker

    def submit(self, folder: Path, shape: JobShape) -> None:
        """Starts the job unless it is running already; what is left of it is ended first."""
        with _locked(folder):
            if self.status(folder) is JobStatus.RUNNING:
                return
            self._end(folder)
            attempt = Attempt.begin(folder, self._settings(shape))
            raise_fence(str(folder / CHECKPOINTS), attempt.number)
            start_detached(
                self._command(attempt, shape),
                marker=_marker(folder),
                log=folder / _LOG,
                status_file=attempt.folder / _EXIT,
                environment={**self._environment(shape), ATTEMPT: str(attempt.number)},
            )

    def status(self, folder: Path) -> JobStatus:
        """State of the job; it runs as long as its supervisor, not merely a rank, is alive."""
        attempt = newest(folder)
        if attempt is None:
            return JobStatus.ABSENT
        if self._is_supervised(attempt):
            return JobStatus.RUNNING
        try:
            done = (attempt.folder / _EXIT).read_text().strip() == "0"
        except FileNotFoundError:
            done = False
        return JobStatus.SUCCEEDED if done else JobStatus.FAILED

    def cancel(self, folder: Path) -> None:
        """Ends all processes of the job: asks first, kills after a grace period."""
        # Before the lock is waited for: a caller that is killed meanwhile has said what it wants.
        attempt = newest(folder)
        if attempt is not None:
            attempt.cancel()
        with _locked(folder):
            self._end(folder)

    def logs(self, folder: Path) -> tuple[Path, ...]:
        """The supervisor's log, then those of the nodes of all attempts."""
        files = sorted(folder.glob("attempts/*/node-*.log"))
        return (folder / _LOG, *files) if (folder / _LOG).exists() else tuple(files)

    @abstractmethod
    def _command(self, attempt: Attempt, shape: JobShape) -> Sequence[str]:
        """Command of the supervisor."""

    @abstractmethod
    def _is_supervisor(self, process: psutil.Process) -> bool:
        """Whether one of the job's processes is its supervisor."""

    def _environment(self, shape: JobShape) -> dict[str, str]:
        """Further variables of the supervisor."""
        return {}

    def _settings(self, shape: JobShape) -> dict[str, Any]:
        """What the attempt's processes read."""
        return {}

    def _has_ended(self, attempt: Attempt) -> bool:
        return (attempt.folder / _EXIT).exists()

    def _is_supervised(self, attempt: Attempt) -> bool:
        return any(self._is_supervisor(process) for process in members(_marker(attempt.job)))

    def _end(self, folder: Path) -> None:
        """Ends what is left of the job; returns when none of its processes is left."""
        end(_marker(folder), _GRACE_SECONDS)


def job_processes(folder: Path) -> list[int]:
    """Ids of the job's living processes on this machine."""
    return [process.pid for process in members(_marker(folder))]


def _marker(folder: Path) -> tuple[str, str]:
    return JOB, str(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One caller at a time: two retries must not start two jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
        yield
