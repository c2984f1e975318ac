"""What the pipeline asks of a launcher, whatever it starts the ranks with."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Protocol


class JobStatus(Enum):
    """State of a training job."""

    ABSENT = "absent"
    """Never submitted, or nothing is left of it."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Launcher(Protocol):
    """Starts a training job and finds it again by its folder.

    The folder is the job's identity: a caller that was killed and comes back with the same
    folder meets the job that it left, not a second copy.
    """

    def submit(self, folder: Path, nproc: int, max_restarts: int, threads: int) -> None:
        """Starts the job described by `folder/job.json` unless it is running already."""

    def status(self, folder: Path) -> JobStatus:
        """State of the job."""

    def cancel(self, folder: Path) -> None:
        """Ends the job; returns when none of its processes is left."""

    def logs(self, folder: Path) -> Path:
        """The job's log file; it grows while the job runs."""
