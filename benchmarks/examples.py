"""Speed of example building against the same job in Polars, and of an encoder against its join.

    python -m benchmarks.examples [--events 8M] [--runs 5] [--figure docs/images/examples.svg]

A log with long-tailed users and items is made once. The examples step on a warm local Dask cluster
of as many workers as cores and the same files made by Polars lazy frames with all cores take
turns, and what they wrote is compared. Then the encode step alone: the log's user IDs in batches,
as integers and as text, to codes, against `DataFrame.join` with the same vocabulary; one thread
each. The last line is one JSON object; times are medians.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.examples_contenders import LOOK_UPS, emptied
from benchmarks.examples_lake import LogShape, make_lake, make_run, rival_job
from benchmarks.local_cluster import CORES
from benchmarks.measure import Contender, Samples, busy_machine, interleave, opened
from benchmarks.options import cache_folder, number
from tasks.run_spec import RunSpec

MODULE = "benchmarks.examples_contenders"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def content(folder: Path) -> dict[str, Any]:
    """What two makers of the same examples must agree on, whatever the order of their rows."""
    import polars as pl

    def scan(name: str) -> pl.LazyFrame:
        files = sorted((folder / name).glob("*.parquet"))
        return pl.scan_parquet(files, hive_partitioning=False)

    def total(frame: pl.LazyFrame, *columns: pl.Expr) -> tuple[int, int]:
        row = pl.struct(*(column.alias(str(n)) for n, column in enumerate(columns))).hash(1)
        found = frame.select(n=pl.len(), total=(row // (1 << 24)).sum()).collect().row(0)
        return int(found[0]), int(found[1])

    def ends(column: str) -> list[pl.Expr]:
        lists = pl.col(column).list
        return [lists.len(), lists.sum().cast(pl.Int64), lists.first(), lists.last()]

    code = pl.col("uid").list.first()
    return {
        "items": total(
            scan("items"), pl.col("item_id"), pl.col("train_count").cast(pl.Int64), *ends("iid")
        ),
        "train": total(scan("train"), pl.col("item"), pl.col("timestamp"), code, *ends("history")),
        "users": total(scan("users"), pl.col("user_id"), code, *ends("history"), *ends("seen")),
        "test": total(
            scan("test"),
            pl.col("user_id"),
            pl.col("train_count"),
            code,
            *ends("history"),
            pl.col("seen").list.len(),
            pl.col("targets").list.len(),
            pl.col("targets").list.sum().cast(pl.Int64),
        ),
    }


def build(options: argparse.Namespace, lake: Path, spec: RunSpec) -> dict[str, Any]:
    """Everybody makes the examples."""
    job = rival_job(lake, spec, options.shape)

    def job_of(name: str) -> dict[str, Any]:
        out = emptied(lake / "out" / name)
        return (
            {"spec": spec.uri, "out": f"out/{name}"}
            if name == "tailtower"
            else {**job, "out": str(out)}
        )

    with ExitStack() as stack:
        contenders = {name: Contender(MODULE, [name]) for name in ("tailtower", "polars")}
        samples = interleave(opened(stack, contenders), job_of, options.runs, say)
    found = {name: content(lake / "out" / name) for name in samples}
    if found["tailtower"] != found["polars"]:
        raise SystemExit(f"the outputs differ: {found}")
    emptied(lake / "out")
    ours, theirs = samples["tailtower"], samples["polars"]
    return {
        **{name: sample.summary() for name, sample in samples.items()},
        "events_per_second": round(options.shape.train_events / ours.median),
        "ratio_vs_polars": round(ours.median / theirs.median, 3),
        "peak_rss_ratio": round(ours.peak / theirs.peak, 3),
    }


def encode(options: argparse.Namespace, spec: RunSpec) -> dict[str, Any]:
    """Everybody looks up the same IDs."""
    report: dict[str, Any] = {"encode": {}}
    with ExitStack() as stack:
        one_thread = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
        contenders = {name: Contender(MODULE, [name], one_thread) for name in LOOK_UPS}
        running = opened(stack, contenders)
        for kind, text in (("integers", False), ("text", True)):
            job = {"spec": spec.uri, "text": text}
            totals = {}
            for name, contender in running.items():
                contender.run({**job, "prepare": True})
                totals[name] = contender.run(job)
            if totals["codes"]["total"] != totals["join_codes"]["total"]:
                raise SystemExit(f"the codes differ: {totals}")
            jobs = dict.fromkeys(running, job)
            samples = interleave(running, jobs.__getitem__, options.runs, say)
            report["encode"][kind] = _speeds(samples, totals["codes"]["ids"])
            ours = samples["codes"].median
            short = "" if kind == "integers" else "text_"
            report[f"encode_{short}ratio_vs_polars_join"] = round(ours / samples["join"].median, 3)
            report[f"encode_{short}ratio_vs_polars_codes"] = round(
                ours / samples["join_codes"].median, 3
            )
    return report


def _speeds(samples: dict[str, Samples], ids: int) -> dict[str, Any]:
    return {
        name: {"ids_per_second": round(ids / found.median), **found.summary()}
        for name, found in samples.items()
    }


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shape = LogShape()
    parser.add_argument("--events", type=number, default=shape.events, help="events of eight days")
    parser.add_argument("--users", type=number, default=shape.users, help="users that may occur")
    parser.add_argument("--items", type=number, default=shape.items, help="items that may occur")
    parser.add_argument("--exponent", type=float, default=shape.exponent, help="of the Zipf law")
    parser.add_argument("--seed", type=int, default=shape.seed, help="of the log")
    parser.add_argument("--history", type=int, default=50, help="longest history")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each, in turn")
    parser.add_argument("--figure", type=Path, help="draw the result into this SVG file")
    parser.add_argument("--cache", type=Path, help="folder that keeps the log; default: none")
    options = parser.parse_args(argv)
    options.shape = LogShape(
        options.events, options.users, options.items, options.exponent, options.seed
    )
    return options


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    report: dict[str, Any] = {
        "benchmark": "examples",
        "events": options.shape.train_events,
        "history": options.history,
        "cores": CORES,
        "runs": options.runs,
        "load_before": round(busy_machine(), 2),
    }
    with cache_folder(options.cache) as cache:
        lake = cache / options.shape.name
        make_lake(lake, options.shape)
        spec = make_run(lake, options.history)
        report.update(build(options, lake, spec))
        report.update(encode(options, spec))
    if options.figure:
        from benchmarks.examples_figure import draw

        draw(report, options.figure)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
