"""Exact ID counts of a day: time and memory against DuckDB, Polars and plain Dask.

    python -m benchmarks.counting [--events 32M] [--runs 5] [--growth] [--figure FILE.svg]

The log: Parquet files with long-tailed users and items whose IDs are 64-bit hashes. Everybody
counts both columns and writes the counts as Parquet (zstd); the product runs its whole count step
with sums checked and a manifest, on a warm Dask cluster of as many workers as cores. The tables
are compared row by row. Then day 30 of a 30-day window (count and vocabulary) against day 1, and
with `--growth` the product alone at 8, 32 and 128 M events. Contenders take turns; times and
peaks are medians; memory is the resident memory of all processes of a contender.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.counting_contenders import COLUMNS, CONTENDERS, emptied
from benchmarks.counting_lake import WINDOW_DAYS, day_of, deliver
from benchmarks.measure import Contender, Samples, busy_machine, interleave, opened
from benchmarks.options import cache_folder, number
from benchmarks.synthetic_events import EventShape, make_events
from tasks.lake import partition_name

GROWTH = (8_000_000, 32_000_000, 128_000_000)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def contender(name: str) -> Contender:
    return Contender("benchmarks.counting_contenders", [name])


def fresh_lake(path: Path, files: list[Path]) -> Path:
    """A lake that holds one day and no counts."""
    deliver(path, 1, files)
    shutil.rmtree(path / "counts", ignore_errors=True)
    return path


def compare_with_others(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Everybody counts the same files."""
    files = make_events(options.cache, shape_of(options, options.events))
    names = [name for name in CONTENDERS if name not in options.without]
    answers: dict[str, Path] = {}

    def job_of(name: str) -> dict[str, Any]:
        target = emptied(work / name)
        answers[name] = target
        job: dict[str, Any] = {"files": [str(file) for file in files], "target": str(target)}
        if name == "tailtower":
            answers[name] = fresh_lake(work / "lake-day", files)
            job.update(lake=str(answers[name]), days=1)
        return job

    with ExitStack() as stack:
        running = opened(stack, {name: contender(name) for name in names})
        samples = interleave(running, job_of, options.runs, say)
    for name in names:
        if name not in ("tailtower", "dask_naive"):
            check_equal(answers["tailtower"], answers[name], name)
    report: dict[str, Any] = {name: found.summary() for name, found in samples.items()}
    ours = samples["tailtower"]
    for other, key in (
        ("duckdb", "ratio_vs_duckdb"),
        ("polars", "ratio_vs_polars"),
    ):
        if other in samples:
            report[key] = round(ours.median / samples[other].median, 3)
    if "duckdb" in samples:
        report["peak_rss_ratio"] = round(ours.peak / samples["duckdb"].peak, 3)
        if "dask_naive" in samples:
            naive = samples["dask_naive"].median
            report["dask_naive_ratio"] = round(naive / samples["duckdb"].median, 3)
    return report


def check_equal(lake: Path, target: Path, name: str) -> None:
    """Compares the product's counts with another's, row by row.

    Raises:
        AssertionError: They differ.
    """
    import polars as pl

    for column in COLUMNS:
        table = column.removesuffix("_id")
        ours = pl.read_parquet(
            lake / "counts" / table / "**" / "*.parquet", hive_partitioning=False
        )
        theirs = pl.read_parquet(target / f"{column}.parquet")
        same = ours.sort("id").equals(theirs.cast(pl.Int64).sort("id"))
        if not same:
            raise AssertionError(f"{name} and the product count {column} differently")


def shape_of(options: argparse.Namespace, events: int) -> EventShape:
    return EventShape(events=events, files=options.files, users=options.users, items=options.items)


def grow(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The product alone at growing sizes, each with a cluster of its own."""
    report: dict[str, Any] = {}
    sizes = [max(1, int(size * options.events / GROWTH[1])) for size in GROWTH]
    samples: dict[int, Samples] = {}
    for size in sizes:
        files = make_events(options.cache, shape_of(options, size))
        lake = work / f"lake-{size}"

        def job_of(_: str, lake: Path = lake, files: list[Path] = files) -> Mapping[str, Any]:
            return {"lake": str(fresh_lake(lake, files)), "days": 1}

        with contender("tailtower") as ours:
            found = interleave({f"{size:,} events": ours}, job_of, options.runs, say)
        samples[size] = next(iter(found.values()))
        report[str(size)] = samples[size].summary()
    small, middle, large = (samples[size] for size in sizes)
    return {
        "growth": report,
        # 1 is linear: seconds per event, from one size to the next.
        "growth_time_ratio": [
            round(middle.median / small.median * sizes[0] / sizes[1], 3),
            round(large.median / middle.median * sizes[1] / sizes[2], 3),
        ],
        "growth_peak_ratio": round(large.peak / middle.peak, 3),
    }


def advance(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The first and the last day of a full window, in turn: counts and vocabularies."""
    lake = work / "lake-window"
    shape = replace(shape_of(options, options.day_events), files=2)
    for day in range(1, WINDOW_DAYS + 1):
        deliver(lake, day, make_events(options.cache, replace(shape, seed=day)))

    def job_of(name: str) -> dict[str, Any]:
        days = int(name.removeprefix("day "))
        made = (
            ("counts", day_of(days)),
            ("vocabulary", day_of(days + 1)),
            ("window", day_of(days + 1)),
        )
        for dataset, day in made:
            for table in ("user", "item"):
                folder = lake / dataset / table / partition_name(day)
                shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(lake / "reports", ignore_errors=True)
        return {"lake": str(lake), "days": days, "vocabulary": True}

    with contender("tailtower") as ours:
        say(f"counting {WINDOW_DAYS} days of {shape.events:,} events")
        ours.run({"lake": str(lake), "days": WINDOW_DAYS, "vocabulary": True})
        names = ("day 1", f"day {WINDOW_DAYS}")
        samples = interleave(dict.fromkeys(names, ours), job_of, options.runs, say)
    first, last = (samples[name] for name in names)
    return {
        "window": {name: found.summary() for name, found in samples.items()},
        "incremental_ratio": round(last.median / first.median, 3),
    }


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shape = EventShape()
    parser.add_argument("--events", type=number, default=shape.events, help="events of the log")
    parser.add_argument("--files", type=int, default=shape.files, help="Parquet files of the log")
    parser.add_argument("--users", type=number, default=shape.users)
    parser.add_argument("--items", type=number, default=shape.items)
    parser.add_argument("--day-events", type=number, help="events of a day of the window")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each contender")
    parser.add_argument(
        "--growth", action="store_true", help="also a quarter and four times the events"
    )
    parser.add_argument(
        "--without", nargs="*", default=[], choices=("duckdb", "polars", "dask_naive")
    )
    parser.add_argument("--no-compare", action="store_true", help="leave the other tools out")
    parser.add_argument("--no-window", action="store_true", help="leave the 30-day window out")
    parser.add_argument("--figure", type=Path, help="draw the result into this SVG file")
    parser.add_argument("--cache", type=Path, help="folder that keeps the logs; default: none")
    options = parser.parse_args(argv)
    options.day_events = options.day_events or options.events // 8
    return options


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    report: dict[str, Any] = {
        "events": options.events,
        "cores": os.cpu_count(),
        "runs": options.runs,
        "load_before": round(busy_machine(), 2),
    }
    with (
        cache_folder(options.cache) as options.cache,
        # On the same disk as the logs: the lakes link to them.
        tempfile.TemporaryDirectory(prefix="counting-", dir=options.cache) as folder,
    ):
        if not options.no_compare:
            report.update(compare_with_others(options, Path(folder)))
        if options.growth:
            report.update(grow(options, Path(folder)))
        if not options.no_window:
            report.update(advance(options, Path(folder)))
    if options.figure:
        from benchmarks.counting_figure import draw

        draw(report, options.figure)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
