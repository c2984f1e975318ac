"""Value counts of the days before, as their checks left them in the lake."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import PurePosixPath
from urllib.parse import unquote

from data_contracts.contract import Contract
from data_contracts.value_counts import Earlier, ValueCounts, counted_columns
from tasks.lake import Lake, Published, partition_name

#: Folder of a day's counts, beside its result.
COUNTS = "values"


def earlier_counts(
    lake: Lake, output: str, contract: Contract, day: date, days_before: Iterable[date]
) -> Earlier:
    """Counts of the days before a day that were checked in some earlier run.

    Args:
        lake: The lake.
        output: Data set that results are published in.
        contract: The contract; without rules about value counts nothing is looked up.
        day: The day.
        days_before: Days before it that are in the lake.
    """
    if not counted_columns(contract.rules):
        return {}
    found = {}
    for before in days_before:
        published = _newest(lake, f"{output}/{partition_name(before)}")
        if published is not None and before < day:
            found[before] = {
                unquote(PurePosixPath(path).stem): ValueCounts(lake.fs, lake.abspath(path))
                for path in published.files()
                if f"/{COUNTS}/" in path
            }
    return found


def _newest(lake: Lake, folder: str) -> Published | None:
    """The result of a day that was published last: of its present content, if that was checked."""
    found = [lake.find(f"{folder}/{key}") for key in lake.list_folders(folder)]
    there = [published for published in found if published is not None]
    return max(there, key=lambda published: _written(lake, published), default=None)


def _written(lake: Lake, published: Published) -> int:
    (info,) = lake.fs.get_file_info([lake.abspath(f"{published.path}/manifest.json")])
    return int(info.mtime_ns or 0)
