"""Sketches of the IDs seen once a day against exact counts: bytes, time and errors.

    python -m benchmarks.admission_filter [--days 14] [--day-events 2M] [--confidence 0.95]

The same days of a log with long-tailed users and items are counted into two lakes, one with
`seen_once: exact`, one with `seen_once: sketch`. Then the newest day is counted again, and its
vocabulary made again, in turn; each lake has a warm Dask cluster of as many workers as cores.
Owners of rows and the counts of all IDs that the second lake knows are compared with the exact
ones. The last line is one JSON object; times and peaks are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.counting_lake import WINDOW_DAYS, day_of, deliver, spec_of
from benchmarks.measure import Contender, Samples, busy_machine, interleave, opened
from benchmarks.options import cache_folder, number
from benchmarks.synthetic_events import EventShape, make_events
from tasks.config import VocabularySettings
from tasks.lake import Lake, Published, partition_name

if TYPE_CHECKING:
    import polars as pl

MODES = ("exact", "sketch")
TABLES = ("user", "item")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def settings_of(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    return {"seen_once": mode, "sketch_confidence": options.confidence}


def make_lakes(options: argparse.Namespace, work: Path) -> dict[str, Path]:
    """Two lakes of the same days."""
    shape = EventShape(events=options.day_events, files=2, users=options.users, items=options.items)
    lakes = {mode: work / mode for mode in MODES}
    for day in range(1, options.days + 1):
        files = make_events(options.cache, replace(shape, seed=day))
        for lake in lakes.values():
            deliver(lake, day, files)
    return lakes


def take_turns(options: argparse.Namespace, lakes: Mapping[str, Path]) -> dict[str, Any]:
    """Counts the newest day and makes its vocabulary, in both lakes in turn."""

    def job_of(mode: str, made: Mapping[str, int], vocabulary: bool) -> dict[str, Any]:
        for dataset, day in made.items():
            for table in TABLES:
                folder = lakes[mode] / dataset / table / partition_name(day_of(day))
                shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(lakes[mode] / "reports", ignore_errors=True)
        return {
            "lake": str(lakes[mode]),
            "days": options.days,
            "vocabulary": vocabulary,
            "table": settings_of(mode, options),
        }

    def counting(mode: str) -> dict[str, Any]:
        return job_of(mode, {"counts": options.days}, vocabulary=False)

    def admitting(mode: str) -> dict[str, Any]:
        newest = options.days + 1
        return job_of(mode, {"vocabulary": newest, "window": newest}, vocabulary=True)

    report: dict[str, Any] = {}
    with ExitStack() as stack:
        module = "benchmarks.counting_contenders"
        running = opened(stack, {mode: Contender(module, ["tailtower"]) for mode in MODES})
        for mode in MODES:
            say(f"counting {options.days} days of {options.day_events:,} events: {mode}")
            running[mode].run(job_of(mode, {}, vocabulary=True))
        for name, job in (("count", counting), ("vocabulary", admitting)):
            report.update(compared(name, interleave(running, job, options.runs, say)))
    return report


def compared(name: str, samples: Mapping[str, Samples]) -> dict[str, Any]:
    exact, sketch = (samples[mode] for mode in MODES)
    return {
        name: {mode: found.summary() for mode, found in samples.items()},
        f"{name}_time_ratio": round(sketch.median / exact.median, 3),
        f"{name}_peak_ratio": round(sketch.peak / exact.peak, 3),
    }


def counts_of(lake: Path, table: str, days: int) -> list[Published]:
    """The daily counts of a lake, oldest first."""
    found = []
    for day in range(1, days + 1):
        folder = f"counts/{table}/{partition_name(day_of(day))}"
        (key,) = Lake(str(lake)).list_folders(folder)
        found.append(Lake(str(lake)).open_published(f"{folder}/{key}"))
    return found


def sizes(lakes: Mapping[str, Path], days: int) -> dict[str, Any]:
    """Bytes of the counts, of all days and both tables."""
    bytes_of = {mode: {"parquet": 0, "sketch": 0} for mode in MODES}
    once = ids = 0
    for mode, lake in lakes.items():
        for published in (day for table in TABLES for day in counts_of(lake, table, days)):
            for entry in published.manifest.files:
                bytes_of[mode][entry.path.rsplit(".", 1)[1]] += entry.bytes
            if mode == "sketch":
                once += int(published.manifest.meta["seen_once"])
                ids += int(published.manifest.meta["ids"])
    total = {mode: sum(found.values()) for mode, found in bytes_of.items()}
    return {
        "bytes": bytes_of,
        "bytes_ratio": round(total["sketch"] / total["exact"], 3),
        "seen_once_share": round(once / ids, 3),
        "sketch_bytes_per_id": round(bytes_of["sketch"]["sketch"] / once, 2),
    }


def window_of(lake: Path, table: str, days: int) -> pl.DataFrame:
    """Occurrences of every ID that a lake's window knows: `id`, `units`."""
    from tasks.longtail.cluster import Inline
    from tasks.longtail.window import weigh
    from tasks.longtail.window_merge import WindowMerge

    today = day_of(days + 1)
    policy = VocabularySettings(min_count=1, keep_count=1)
    weighted = [
        weigh(counts, day_of(number), today=today, decay=1.0)
        for number, counts in enumerate(counts_of(lake, table, days), start=1)
    ]
    merge = WindowMerge(Lake(str(lake)), Inline(), f"benchmark-{table}", policy)
    return merge.summarize(today, weighted, None, None).candidates.select("id", "units")


def owners_of(lake: Path, table: str, options: argparse.Namespace, mode: str) -> pl.DataFrame:
    """The newest vocabulary: `id`, `count`."""
    import polars as pl

    spec = spec_of(lake, options.days, None, settings_of(mode, options))
    day = partition_name(spec.day)
    (path,) = lake.glob(f"vocabulary/{table}/{day}/*/*/part-0.parquet")
    return pl.read_parquet(path, columns=["id", "count"], hive_partitioning=False)


def errors(options: argparse.Namespace, lakes: Mapping[str, Path], table: str) -> dict[str, Any]:
    """What the sketches get wrong, against the exact counts.

    Raises:
        AssertionError: An ID that the sketches' lake knows was counted too low.
    """
    from tasks.longtail.window import UNIT

    exact, sketch = (window_of(lakes[mode], table, options.days) for mode in MODES)
    both = sketch.join(exact, on="id", how="left", suffix="_exact")
    over = (both["units"] - both["units_exact"]) // UNIT
    if over.null_count() or int(str(over.min() or 0)) < 0:
        raise AssertionError(f"{table}: an ID was counted too low")
    right, found = (owners_of(lakes[mode], table, options, mode) for mode in MODES)
    missed = right.join(found, on="id", how="anti")
    false = found.join(right, on="id", how="anti")
    return {
        "ids": exact.height,
        "ids_known": sketch.height,
        "owners": right.height,
        "missed_share": round(missed.height / max(right.height, 1), 5),
        "missed_events_share": round(
            float(missed["count"].sum()) / max(float(right["count"].sum()), 1.0), 5
        ),
        "false_share": round(false.height / max(found.height, 1), 5),
        "overestimate_mean": round(float(str(over.mean() or 0.0)), 4),
        "overestimate_of_owners_mean": round(
            float(str(over.filter(both["id"].is_in(found["id"].implode())).mean() or 0.0)), 4
        ),
        "overestimate_worst": int(str(over.max() or 0)),
        "counted_right_share": round(float((over == 0).sum()) / max(over.len(), 1), 4),
    }


def speed(ids: int, confidence: float) -> dict[str, Any]:
    """Updates and queries of one sketch in a second, one thread."""
    import polars as pl

    from tasks.longtail.seen_once import found_in, sketch_of

    present, absent = pl.Series(range(ids)), pl.Series(range(ids, 2 * ids))

    def rate(work: Callable[[], Any]) -> tuple[int, Any]:
        started = time.perf_counter()
        made = work()
        return round(ids / (time.perf_counter() - started)), made

    updates, sketch = rate(lambda: sketch_of(present, confidence))
    queries, found = rate(lambda: found_in(sketch, absent))
    return {
        "ids": ids,
        "updates_per_second": updates,
        "queries_per_second": queries,
        "found_though_absent": round(float(found.mean()), 5),
        "bytes_in_memory_per_id": round(sketch.get_serialized_size_bytes() / ids, 1),
    }


def parse(argv: list[str] | None) -> argparse.Namespace:
    shape = EventShape()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=14, help="days of the window")
    parser.add_argument("--day-events", type=number, default=2_000_000, help="events of a day")
    parser.add_argument("--users", type=number, default=shape.users)
    parser.add_argument("--items", type=number, default=shape.items)
    parser.add_argument("--confidence", type=float, default=0.95, help="of the sketches")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each mode")
    parser.add_argument("--cache", type=Path, help="folder that keeps the logs; default: none")
    options = parser.parse_args(argv)
    if not 1 <= options.days <= WINDOW_DAYS:
        parser.error(f"--days: the window holds 1 to {WINDOW_DAYS}")
    return options


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    report: dict[str, Any] = {
        "days": options.days,
        "day_events": options.day_events,
        "confidence": options.confidence,
        "cores": os.cpu_count(),
        "runs": options.runs,
        "load_before": round(busy_machine(), 2),
    }
    with (
        cache_folder(options.cache) as options.cache,
        # On the same disk as the logs: the lakes link to them.
        tempfile.TemporaryDirectory(prefix="admission-", dir=options.cache) as folder,
    ):
        lakes = make_lakes(options, Path(folder))
        report.update(take_turns(options, lakes))
        report.update(sizes(lakes, options.days))
        for table in TABLES:
            report[table] = errors(options, lakes, table)
    report["sketch_speed"] = speed(max(1, options.day_events // 2), options.confidence)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
