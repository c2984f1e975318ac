"""Runs the ranks on this machine with torchrun."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import psutil

from tasks.launch.attempts import Attempt
from tasks.launch.processes import thread_variables
from tasks.launch.protocol import JOB, JobShape
from tasks.launch.supervised import SupervisedLauncher


class LocalLauncher(SupervisedLauncher):
    """Torchrun on this machine, which is the job's only node."""

    def _command(self, attempt: Attempt, shape: JobShape) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            f"--nproc-per-node={shape.ranks_per_node}",
            f"--max-restarts={shape.max_restarts}",
            *("-m", self._worker, "--job", str(attempt.job / JOB)),
        ]

    def _environment(self, shape: JobShape) -> dict[str, str]:
        return thread_variables(shape.threads, shape.ranks_per_node)

    def _is_supervisor(self, process: psutil.Process) -> bool:
        try:
            return "torch.distributed.run" in process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False
