"""What reading in the background gains, and how long training waits for its input.

    python -m benchmarks.input [--rows 100000] [--steps 64] [--runs 5] [--latency 0 50 150]

The product trains on the same examples twice, reading ahead in the background and reading in
turn; from local files and from a file system whose every request takes some milliseconds more,
as an object store's does. One thread on one core computes; the reader is free to wait beside it.
The last line is one JSON object: `async_gain` is the time in turn over the time in the
background, and `input_wait_share` the part of the time that training waited for input, which is
also what every training reports to MLflow. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measure import Contender, busy_machine, interleave, opened
from benchmarks.slow_store import LATENCY, PROTOCOL
from benchmarks.training import ONE_THREAD, say
from benchmarks.training_world import WorldShape, make_job, make_world
from models.config import TrainJob

WAYS = {"background": 2, "in_turn": 0}
"""Macro-batches read ahead."""


class _Waits(Contender):
    """Keeps what the training says about waiting."""

    def __init__(self, job: Path, latency: float) -> None:
        environment = {**ONE_THREAD, LATENCY: str(latency / 1000)}
        super().__init__("benchmarks.training_contenders", ["tailtower", str(job)], environment)
        self.shares: list[float] = []

    def run(self, job: Mapping[str, Any], into: Any = None) -> dict[str, Any]:
        answer = super().run(job, into)
        if into is not None:
            self.shares.append(answer["input_wait_share"])
        return answer


def measure(options: argparse.Namespace, latency: float) -> dict[str, Any]:
    """Both ways of reading at one latency."""
    shape = WorldShape(options.rows, options.steps, steps_per_file=options.steps_per_file)
    world = make_world(options.cache, shape)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        contenders = {}
        for name, ahead in WAYS.items():
            job = make_job(world, shape, options.steps, read_ahead=ahead)
            path = Path(folder) / f"{name}.json"
            path.write_text((job if not latency else _far(job)).model_dump_json())
            contenders[name] = _Waits(path, latency)
        running = opened(stack, contenders)
        samples = interleave(running, lambda _: {}, options.runs, say)
        found: dict[str, Any] = {
            name: {
                **samples[name].summary(),
                "input_wait_share": round(statistics.median(contender.shares), 4),
            }
            for name, contender in contenders.items()
        }
    gain = samples["in_turn"].median / samples["background"].median
    return {"async_gain": round(gain, 3), **found}


def _far(job: TrainJob) -> TrainJob:
    files = tuple(f"{PROTOCOL}://{os.path.abspath(path)}" for path in job.train_files)
    return job.model_copy(update={"train_files": files})


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.input",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=100_000, help="users, and items")
    parser.add_argument("--steps", type=int, default=64, help="batches of 4096 of one run")
    parser.add_argument("--steps-per-file", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--latency", type=float, nargs="+", default=[0, 50, 150], help="ms")
    parser.add_argument("--cache", type=Path, default=Path("var/benchmarks"))
    options = parser.parse_args(argv)
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_before": round(busy_machine(), 2)}
    found = {f"{latency:g}": measure(options, latency) for latency in options.latency}
    first = next(iter(found.values()))
    report |= {
        "async_gain": first["async_gain"],
        "input_wait_share": first["background"]["input_wait_share"],
        "latency_ms": found,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
