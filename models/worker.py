"""A training process without any tracking: `python -m models.worker --job job.json`.

Every report is a line of JSON on standard output; the last line is the summary. It is one rank
under `torchrun`, or the only one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from models.config import TrainJob
from models.errors import TrainingStopped
from models.progress import MetricSink
from models.trainer import train

STOPPED = 143
"""Exit status after SIGTERM, as a shell reports it."""


class JsonLines(MetricSink):
    """Prints every report as a line of JSON."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints numbers at a step."""
        _print({"step": step, **metrics})

    def log_text(self, name: str, text: str) -> None:
        """Prints a text."""
        _print({"name": name, "text": text})

    def progress(self, done: int, total: int, message: str) -> None:
        """Prints how far the training is."""
        _print({"done": done, "total": total, "message": message})


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains a job that is given as a file; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--job", type=Path, required=True, help="JSON file of a training job")
    job = TrainJob.model_validate_json(parser.parse_args(arguments).job.read_text("utf-8"))
    try:
        summary = train(job, JsonLines())
    except TrainingStopped as stopped:
        print(stopped, file=sys.stderr)
        return STOPPED
    _print({"summary": dataclasses.asdict(summary)})
    return 0


def _print(content: Mapping[str, object]) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    sys.exit(main())
