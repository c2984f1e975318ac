"""What the pipeline asks of a launcher, whatever it starts the ranks with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

JOB = "job.json"
"""What every rank reads, in the job's folder."""
CHECKPOINTS = "checkpoints"
"""Where its checkpoints are, in the job's folder."""


class JobStatus(Enum):
    """State of a training job."""

    ABSENT = "absent"
    """Never submitted, or nothing is left of it."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class JobShape:
    """On how many nodes and ranks a job runs, and what it survives.

    Attributes:
        ranks_per_node: Ranks on each node.
        threads: Compute threads of a rank; None for its share of the node's cores.
        max_restarts: How often a node's agent starts its ranks again after a failure.
        min_nodes: Fewest nodes.
        max_nodes: Most nodes.
        peer_timeout_seconds: Silence after which a node is taken for lost.
        join_seconds: How long nodes beyond the fewest are waited for.
    """

    ranks_per_node: int = 1
    threads: int | None = None
    max_restarts: int = 0
    min_nodes: int = 1
    max_nodes: int = 1
    peer_timeout_seconds: float = 120.0
    join_seconds: int = 15

    def on_one_node(self) -> JobShape:
        """The shape of a job that is one process."""
        return dataclasses.replace(self, ranks_per_node=1, min_nodes=1, max_nodes=1)


class Launcher(Protocol):
    """Starts a training job and finds it again by its folder.

    The folder is the job's identity: a caller that was killed and comes back with the same
    folder meets the job that it left, not a second copy. Each start is an attempt with a number
    of its own, and what is left of earlier attempts can write no checkpoint any more.
    """

    def submit(self, folder: Path, shape: JobShape) -> None:
        """Starts the job described by `folder/job.json` unless it is running already."""

    def status(self, folder: Path) -> JobStatus:
        """State of the job."""

    def cancel(self, folder: Path) -> None:
        """Ends the job; returns when none of its processes is left."""

    def logs(self, folder: Path) -> tuple[Path, ...]:
        """The job's log files; they grow, and more may come, while the job runs."""
