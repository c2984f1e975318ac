"""What torchrun starts on every rank: trains the job of a folder, rank 0 logs to MLflow."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from models.config import TrainJob
from models.errors import FencedError, ModelError, TrainingStopped
from models.trainer import train
from tasks.progress import log
from tasks.tracking import MetricLogger

TRACKING = "tracking.json"
ERROR = "error.json"
PROGRESS = "train.progress"
"""Event of the log lines that say how far the job is."""
_OF_THE_MACHINES = (FencedError, TrainingStopped)
"""Errors that say nothing about the job itself."""


class _Sink:
    """Rank 0's reports: a line in the job's log, and the job's MLflow run."""

    def __init__(self, role: str, logger: MetricLogger) -> None:
        self._role = role
        self._logger = logger

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        shown = {name: round(value, 5) for name, value in metrics.items()}
        log(f"train.{self._role}", step=step, **shown)
        self._logger.log_metrics(step, {f"train/{name}": value for name, value in metrics.items()})

    def log_text(self, name: str, text: str) -> None:
        for line in text.splitlines():
            log(f"train.{self._role}", note=line)
        self._logger.log_text(name, text)

    def progress(self, done: int, total: int, message: str) -> None:
        log(PROGRESS, done=done, total=total, message=message)


class _Silent:
    """The other ranks report nothing."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Drops the metrics."""

    def log_text(self, name: str, text: str) -> None:
        """Drops the text."""

    def progress(self, done: int, total: int, message: str) -> None:
        """Drops the line."""


def main() -> int:
    """Trains the job; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True, type=Path, help="path of the job's job.json")
    path: Path = parser.parse_args().job
    job = TrainJob.model_validate_json(path.read_text())
    try:
        if int(os.environ.get("RANK", "0")) != 0:
            train(job, _Silent())
            return 0
        target: dict[str, Any] = json.loads((path.parent / TRACKING).read_text())
        with MetricLogger(target["uri"], target["run_id"]) as logger:
            train(job, _Sink(target["role"], logger))
    except Exception as error:
        leave(error, path.parent / ERROR)
    return 0


def leave(error: Exception, file: Path) -> NoReturn:
    """Writes down, for the step that waits for the job, what went wrong, and ends the process.

    Args:
        error: What ended the training on this rank.
        file: Where it is written.
    """
    of_the_input = isinstance(error, ModelError) and not isinstance(error, _OF_THE_MACHINES)
    # Ranks that lose the one that failed fail as well, later, and know nothing of the cause.
    if of_the_input or not file.exists():
        what = str(error) or type(error).__name__
        trace = traceback.format_exc()
        file.write_text(json.dumps({"what": what, "trace": trace, "of_the_input": of_the_input}))
    traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # An exit in good order would wait for a checkpoint that waits for ranks which are gone.
    os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main())
