"""Time and memory of checking a day against the shipped contract of interactions.

    python -m benchmarks.validation [--events 1000000 4000000 16000000] [--runs 3] [--ids int64]

A day of long-tailed events, IDs as 64-bit hashes or as text, in files of a million rows, is checked
in a process of its own with one thread, Great Expectations imported before: footers, values,
duplicates and value counts, as the validate step does on one worker. CPU seconds are those of one
core; memory is the highest resident memory of the process, and less what it had before the day.
The last line is one JSON object; times and peaks are medians.
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
ONE_THREAD = {"OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}


def make_day(cache: Path, events: int, ids: str) -> Path:
    """The day's folder; made once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.synthetic_events import hashed, zipf_ranks

    folder = cache / f"validation-{ids}-{events}" / f"dt={DAY}"
    if (folder / "_SUCCESS").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    start = int(datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC).timestamp()) * 1_000_000
    for number, first in enumerate(range(0, events, FILE_ROWS)):
        rng = np.random.default_rng([7, number])
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
    parser.add_argument("--cache", type=Path, default=Path("var/benchmarks"))
    options = parser.parse_args(argv)
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_before": round(busy_machine(), 2)}
    for ids in options.ids:
        found = [
            measure(make_day(options.cache, events, ids), events, options.runs)
            for events in options.events
        ]
        report[ids] = found
        # 1 is flat: memory of the largest day over that of the smallest.
        report[f"{ids}_peak_ratio"] = round(found[-1]["peak_mib"] / found[0]["peak_mib"], 3)
    print(json.dumps(report))


if __name__ == "__main__":
    serve_checks() if sys.argv[1:] == ["serve"] else main()
