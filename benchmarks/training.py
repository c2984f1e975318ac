"""Training speed from Parquet to updated weights, against what one would write by hand.

    python -m benchmarks.training [--rows 100000 1000000 5000000] [--steps 16] [--runs 5]

Five tables with long-tailed IDs, vectors of 64, batches of 4096 with the negatives of the batch,
one thread on one core. Contenders are processes that keep their model and take turns; one round
before the first is not counted. See `benchmarks/training_contenders.py` for who they are. The
last line is one JSON object; a ratio is the other's time over the product's, for as many examples,
from medians. `cpu_ratio` is the same of processor time, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measure import Contender, Samples, busy_machine, interleave, opened
from benchmarks.training_world import WorldShape, make_job, make_world
from models.config import TrainJob
from tasks.errors import ConfigError

ONE_THREAD = {"OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
RIVALS = ("traditional", "sparse", "bare_fbgemm", "bare_fbgemm_distinct", "fused_adam", "products")
FEW_STEPS = 2
"""Steps of a contender whose step costs time for every row of the tables, where rows are many."""
DENSE = ("traditional", "fused_adam")
BYTES_PER_ROW = 4 * 64 * 2.3
"""Of one copy of all tables, by row of the user table."""
COPIES = {"traditional": 4, "fused_adam": 4, "sparse": 2}
"""Copies of the tables that a contender holds, temporary ones included; others hold one."""


def measure(options: argparse.Namespace, rows: int) -> dict[str, Any]:
    """All contenders at one size, as many at a time as memory holds."""
    shape = WorldShape(rows=rows, steps=options.steps, batch=options.batch)
    world = make_world(options.cache, shape)
    report: dict[str, Any] = {}
    for group in groups_of(rows, options.without, options.memory_gib * 2**30):
        names = ["tailtower", *group]
        jobs = {name: make_job(world, shape, steps_of(name, rows, options.steps)) for name in names}
        samples, examples = take_turns({name: (name, job) for name, job in jobs.items()}, options)
        ours = rate(samples["tailtower"], examples["tailtower"])
        own_cpu = samples["tailtower"].cpu / examples["tailtower"]
        report.setdefault("tailtower", described(samples["tailtower"], examples["tailtower"]))
        for name in group:
            report[name] = described(samples[name], examples[name])
            report[name]["ratio"] = round(ours / rate(samples[name], examples[name]), 3)
            cpu = samples[name].cpu / examples[name] / own_cpu
            report[name]["cpu_ratio"] = round(cpu, 3)
    return report


def take_turns(
    jobs: dict[str, tuple[str, TrainJob]], options: argparse.Namespace
) -> tuple[dict[str, Samples], dict[str, int]]:
    """Runs contenders in turn; gives the samples of each and its examples in a run.

    Args:
        jobs: Contender and job by the name that is shown.
        options: How many runs count.
    """
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        contenders = {}
        for name, (contender, job) in jobs.items():
            path = Path(folder) / f"{name}.json"
            path.write_text(job.model_dump_json())
            contenders[name] = Contender(
                "benchmarks.training_contenders", [contender, str(path)], ONE_THREAD
            )
        running = opened(stack, contenders)
        samples = interleave(running, lambda _: {}, options.runs, say)
        return samples, {name: one.run({})["examples"] for name, one in running.items()}


def grow(options: argparse.Namespace) -> float:
    """Our time per example with the most rows over that with the fewest, taking turns."""
    jobs = {}
    for rows in _ends(dict.fromkeys(options.rows)):
        shape = WorldShape(rows=rows, steps=options.steps, batch=options.batch)
        job = make_job(make_world(options.cache, shape), shape, options.steps)
        jobs[f"{rows} rows"] = ("tailtower", job)
    samples, examples = take_turns(jobs, options)
    small, large = (rate(samples[name], examples[name]) for name in jobs)
    return round(small / large, 3)


def groups_of(rows: int, without: list[str], memory: float) -> list[list[str]]:
    """Rivals that run beside the product at the same time."""
    groups: list[list[str]] = []
    used = 0.0
    for name in RIVALS:
        if name in without:
            continue
        size = COPIES.get(name, 1) * rows * BYTES_PER_ROW
        if not groups or used + size > memory:
            groups.append([])
            used = rows * BYTES_PER_ROW
        groups[-1].append(name)
        used += size
    return groups or [[]]


def steps_of(name: str, rows: int, steps: int) -> int:
    return min(steps, FEW_STEPS) if name in DENSE and rows > 200_000 else steps


def rate(samples: Samples, examples: int) -> float:
    return examples / samples.median


def described(samples: Samples, examples: int) -> dict[str, Any]:
    return {
        "examples_per_second": round(rate(samples, examples)),
        "cpu_microseconds_per_example": round(samples.cpu / examples * 1e6, 2),
        **samples.summary(),
    }


def keys(sizes: dict[int, dict[str, Any]]) -> dict[str, float]:
    """The figures that are looked at first."""
    found: dict[str, float] = {}
    for rows, label in ((1_000_000, "1m"), (5_000_000, "5m")):
        for name in ("traditional", "sparse", "fused_adam"):
            if name in sizes.get(rows, {}):
                found[f"ratio_vs_{name}_{label}"] = sizes[rows][name]["ratio"]
    middle = sizes.get(1_000_000) or sizes[max(sizes)]
    for name in ("bare_fbgemm", "bare_fbgemm_distinct"):
        if name in middle:
            found[f"ratio_vs_{name}"] = middle[name]["ratio"]
    if "products" in middle:
        found["roofline"] = middle["products"]["ratio"]
    products = {n: size["products"] for n, size in sizes.items() if "products" in size}
    if len(products) > 1:
        few, many = (products[rows]["examples_per_second"] for rows in _ends(products))
        found["products_growth"] = round(few / many, 3)
    return found


def _ends(sizes: dict[int, Any]) -> tuple[int, int]:
    """The smallest and the largest size."""
    return min(sizes), max(sizes)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = [100_000, 1_000_000, 5_000_000]
    parser.add_argument("--rows", type=int, nargs="+", default=sizes, help="users, and items")
    parser.add_argument("--steps", type=int, default=16, help="batches of one run")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each contender")
    parser.add_argument("--without", nargs="*", default=[], choices=RIVALS)
    parser.add_argument("--memory-gib", type=float, default=16.0, help="for all contenders")
    parser.add_argument("--cache", type=Path, default=Path("var/benchmarks"))
    options = parser.parse_args(argv)
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError(
            "this benchmark keeps each contender on one core, which only Linux can",
            fix="run it on Linux",
        )
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_before": round(busy_machine(), 2)}
    found = {rows: measure(options, rows) for rows in options.rows}
    report |= {"batch": options.batch, "steps": options.steps, "runs": options.runs}
    report |= {"rows": {str(rows): sizes for rows, sizes in found.items()}, **keys(found)}
    if len(found) > 1:
        report["rows_growth"] = grow(options)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
