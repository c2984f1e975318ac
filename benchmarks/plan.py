"""What `tailtower plan` predicts for a few ranks on this machine, beside what they take.

    python -m benchmarks.plan [--rows 1000000] [--ranks 2 4] [--runs 5]

A rank is measured on made-up examples and the exchange between two processes by itself, as
`tailtower plan --measure` does; then one rank and each of `--ranks` train on the examples of
`benchmarks.scaling`, taking turns. More ranks than cores share them, in the prediction as well. The
last line is one JSON object: `error` is the predicted time of a macro-batch over the measured one,
less 1; times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measure import busy_machine
from benchmarks.scaling import Plan, take_turns
from benchmarks.training import say
from benchmarks.training_world import WorldShape
from models.config import TrainJob
from models.expected_work import DataShape
from models.planning import Cluster, Job, predict


def planned(job: TrainJob, shape: WorldShape) -> Job:
    """What `plan` is told of a job on one rank: means of the world, and no more."""
    data = DataShape(
        items=shape.rows,
        exponent=shape.exponent,
        elements={"recent": shape.history / 2, "tags": (1 + shape.tags) / 2},
    )
    return Job(job.model, job.tables, job.table_rows, job.training, data)


def calibrated(job: Job, cores: int) -> Cluster:
    """This machine, measured on one core as the ranks have one."""
    import torch

    from models.calibration import measure_costs, measure_link

    usable = os.sched_getaffinity(0)
    torch.set_num_threads(1)
    link = measure_link()
    os.sched_setaffinity(0, {min(usable)})
    try:
        costs, _ = measure_costs(job)
    finally:
        os.sched_setaffinity(0, usable)
    say(f"measured: {costs}, {link} with {cores} cores")
    return Cluster(costs, local_bandwidth=link.bandwidth, local_latency=link.latency)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Predictions and measurements by number of ranks."""
    plan = Plan.of(options, "tailtower")
    cores = len(os.sched_getaffinity(0))
    job = planned(plan.job(slice(plan.files), 1), plan.shape)
    cluster = calibrated(job, cores)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as name:
        groups = plan.groups(stack, Path(name), controls=False)
        take_turns(groups, options.runs)
    found: dict[str, Any] = {}
    for group, ranks in zip(groups, [1, *options.ranks], strict=True):
        shared = Cluster(
            cluster.costs,
            ranks_a_host=ranks,
            cores_a_rank=min(1.0, cores / ranks),
            local_bandwidth=cluster.local_bandwidth,
            local_latency=cluster.local_latency,
        )
        prediction = predict(job, shared, 1)
        measured = group.median / options.macros
        found[str(ranks)] = {
            "error": round(prediction.step_seconds / measured - 1, 3),
            "predicted_seconds": round(prediction.step_seconds, 3),
            "measured_seconds": round(measured, 3),
            "shared_cores": ranks > cores,
            "predicted_parts": {n: round(s, 3) for n, s in prediction.seconds.items()},
            "measured_parts": {
                n: round(s / options.macros, 3) for n, s in group.summary()["parts"].items()
            },
        }
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="users, and items")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--batch", type=int, default=8192, help="micro-batch over all ranks")
    parser.add_argument(
        "--micro", type=int, default=16, help="micro-batches of a macro-batch of the most ranks"
    )
    parser.add_argument("--macros", type=int, default=2, help="macro-batches of one run")
    parser.add_argument("--sharding", default="auto", help="of all tables")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each")
    parser.add_argument("--cache", type=Path, default=Path("var/benchmarks"))
    options = parser.parse_args(argv)
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_before": round(busy_machine(), 2)}
    found = measure(options)
    report["worst_error"] = max((abs(one["error"]) for one in found.values()), default=0.0)
    print(json.dumps({**report, "rows": options.rows, "runs": options.runs, "ranks": found}))


if __name__ == "__main__":
    main()
