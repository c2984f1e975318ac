"""Time and memory of checking a day against the shipped contract of interactions.

    python -m benchmarks.validation [--events 1000000 4000000 16000000] [--runs 3]
        [--ids int64 string] [--share-rows 30000000] [--figure docs/images/validation.svg]

A day of long-tailed events, IDs as 64-bit hashes or as text, in files of a million rows, is checked
in a process of its own with one thread, Great Expectations imported before: footers, values,
duplicates and value counts, as the validate step does on one worker. CPU seconds are those of one
core; memory is the highest resident memory of the process. With `--share-rows` the steps before the
training are run on one lake of so many rows, and the share of the validate step is told. The last
line is one JSON object; times and peaks are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import Contender, busy_machine, interleave, opened, serve

DAY = date(2026, 1, 2)
FILE_ROWS = 1_000_000
USERS, ITEMS, EXPONENT = 2_000_000, 500_000, 1.05
GOALS = {
    "cpu_seconds_per_million": 1.2,  # at the largest size
    "peak_ratio": 1.25,  # of the largest size over the smallest: flat
    "first_share": 0.15,
    "daily_share": 0.15,
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}


def make_day(cache: Path, events: int, ids: str, day: date = DAY) -> Path:
    """The folder of a day; made once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.synthetic_events import hashed, zipf_ranks

    folder = cache / f"validation-{ids}-{events}" / f"dt={day}"
    if (folder / "_SUCCESS").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    start = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
    for number, first in enumerate(range(0, events, FILE_ROWS)):
        rng = np.random.default_rng([day.toordinal(), number])
        rows = min(FILE_ROWS, events - first)
        times = start + np.sort(rng.integers(0, 86_400_000_000, rows))
        columns = {
            "user_id": hashed(zipf_ranks(rng, rows, USERS, EXPONENT), 0),
            "item_id": hashed(zipf_ranks(rng, rows, ITEMS, EXPONENT), 1 << 32),
        }
        table = {name: pa.array(values) for name, values in columns.items()}
        if ids == "string":
            table = {name: values.cast(pa.string()) for name, values in table.items()}
        table["timestamp"] = pa.array(times).cast(pa.timestamp("us", tz="UTC"))
        table["weight"] = pa.array(np.ones(rows, np.float32))
        pq.write_table(pa.table(table), folder / f"part-{number:04d}.parquet")
    (folder / "_SUCCESS").touch()
    return folder


def serve_checks() -> None:
    """The process that checks: `python -m benchmarks.validation serve`."""
    import pyarrow as pa
    import pyarrow.fs as pafs

    import data_contracts
    from data_contracts.check import DayOfData, check_days
    from data_contracts.contract import load_contract
    from data_contracts.data_files import DataFile, DataFiles
    from data_contracts.database import use_threads
    from data_contracts.expectations import FrameValidation

    pa.set_cpu_count(1)
    use_threads(1)
    FrameValidation([])  # the import, which every process pays once
    contract = load_contract(Path(data_contracts.__file__).parent / "interactions.odcs.yaml")

    def work(job: dict[str, Any]) -> dict[str, Any]:
        paths = sorted(Path(job["folder"]).glob("*.parquet"))
        files = tuple(DataFile(path.name, str(path)) for path in paths)
        started = time.process_time()
        (result,) = check_days(contract, [DayOfData(DAY, DataFiles(pafs.LocalFileSystem(), files))])
        cpu = time.process_time() - started
        if result.blocked or result.rows != job["events"]:
            raise AssertionError(f"the day is not as it was made: {result.broken}")
        return {"cpu_seconds": cpu, "rules": len(result.rules)}

    serve(work)


class _WithCpu(Contender):
    """Keeps what the process says about its CPU time."""

    def __init__(self) -> None:
        super().__init__("benchmarks.validation", ["serve"], ONE_THREAD)
        self.cpu: list[float] = []

    def run(self, job: Mapping[str, Any], into: Any = None) -> dict[str, Any]:
        answer = super().run(job, into)
        if into is not None:
            self.cpu.append(answer["cpu_seconds"])
        return answer


def measure(folder: Path, events: int, runs: int) -> dict[str, Any]:
    """One size, in a fresh process."""
    with ExitStack() as stack:
        process = _WithCpu()
        running = opened(stack, {"check": process})
        samples = interleave(
            running, lambda _: {"folder": str(folder), "events": events}, runs, _say
        )["check"]
    millions = events / 1e6
    return {
        "events": events,
        "cpu_seconds_per_million": round(statistics.median(process.cpu) / millions, 3),
        "seconds_per_million": round(samples.median / millions, 3),
        "peak_mib": round(samples.peak),
    }


def compared_with_goals(report: Mapping[str, Any]) -> dict[str, Any]:
    """What was found beside what is wanted; a figure that was not measured is left out."""
    found: dict[str, float] = {}
    for sizes in report["ids"].values():
        largest, smallest = sizes[-1], sizes[0]
        now = {"cpu_seconds_per_million": largest["cpu_seconds_per_million"]}
        if len(sizes) > 1:
            now["peak_ratio"] = round(largest["peak_mib"] / smallest["peak_mib"], 3)
        found = {name: max(value, found.get(name, value)) for name, value in now.items()}
    if "daily_run" in report:
        for run in ("first", "daily"):
            found[f"{run}_share"] = report["daily_run"][run]["share"]
    return {
        name: {"found": value, "at_most": GOALS[name], "met": value <= GOALS[name]}
        for name, value in found.items()
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.validation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = [1_000_000, 4_000_000, 16_000_000]
    parser.add_argument("--events", type=int, nargs="+", default=sizes)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ids", choices=("int64", "string"), nargs="+", default=["int64"])
    parser.add_argument("--share-rows", type=int, help="rows of the run whose share is told")
    parser.add_argument("--figure", type=Path, help="SVG file to be drawn")
    parser.add_argument("--cache", type=Path, default=Path("var/benchmarks"))
    options = parser.parse_args(argv)
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_before": round(busy_machine(), 2)}
    report["ids"] = {
        ids: [
            measure(make_day(options.cache, events, ids), events, options.runs)
            for events in options.events
        ]
        for ids in options.ids
    }
    if options.share_rows:
        report["daily_run"] = _daily_run(options.cache, options.share_rows, options.ids[0])
    report["goals"] = compared_with_goals(report)
    if options.figure:
        from benchmarks.validation_figure import draw

        draw(report, options.figure)
    print(json.dumps(report))


def _daily_run(cache: Path, rows: int, ids: str) -> dict[str, Any]:
    from benchmarks.counting_lake import day_of
    from benchmarks.validation_share import TRAIN_DAYS, measure_share

    def files(number: int) -> list[Path]:
        folder = make_day(cache, rows // (TRAIN_DAYS + 1), ids, day_of(number))
        return sorted(folder.glob("*.parquet"))

    return measure_share(cache, rows, files, _say)


if __name__ == "__main__":
    serve_checks() if sys.argv[1:] == ["serve"] else main()
