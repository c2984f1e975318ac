"""What torchrun starts on every rank: trains the job of a folder, rank 0 logs to MLflow."""

from __future__ import annotations

import argparse
import json
import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.config import TrainJob
from models.errors import ModelError
from models.trainer import train
from tasks.progress import log
from tasks.tracking import MetricLogger

JOB = "job.json"
TRACKING = "tracking.json"
ERROR = "error.json"
PROGRESS = "train.progress"
"""Event of the log lines that say how far the job is."""


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
        # For the step that waits for this job; torchrun's own report hides the cause.
        cause = {
            "what": str(error) or type(error).__name__,
            "trace": traceback.format_exc(),
            "of_the_input": isinstance(error, ModelError),
        }
        (path.parent / ERROR).write_text(json.dumps(cause))
        raise
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
