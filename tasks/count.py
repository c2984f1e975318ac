"""Step: counts every ID of every day before the test days, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date

from tasks.errors import DataError
from tasks.lake import Lake, Published
from tasks.longtail.count_plan import DayCounts, wanted_counts
from tasks.longtail.storage import storage_errors
from tasks.progress import log
from tasks.run_spec import RunSpec, StepResult


def run(spec: RunSpec) -> StepResult:
    """Counts the days that have not been counted yet.

    Returns:
        One output for each table and day, named `item/2026-01-01` and so on; facts
        `counted_days`, `reused_days` (table days), and `ids` and `nulls` of the days counted now.

    Raises:
        DataError: A file is damaged, a column is missing or holds no IDs, or a side table that
            a table counts is absent.
        ConfigError: A table wants sketches, and the library is not installed.
        ClusterError: The Dask cluster failed.
        LakeError: The lake cannot be written, or files changed while they were read.
    """
    lake = spec.lake()
    wanted = wanted_counts(spec, lake)
    _check_sources(spec, lake)
    found = {_name(day): day.find(lake) for day in wanted}
    missing = [day for day in wanted if found[_name(day)] is None]
    with storage_errors(lake):
        fresh = _count(spec, lake, missing) if missing else {}
    outputs = {name: fresh.get(name) or published for name, published in found.items()}
    present = {name: published for name, published in outputs.items() if published is not None}
    return StepResult.of(
        "count",
        present,
        counted_days=len(missing),
        reused_days=len(wanted) - len(missing),
        ids=sum(int(counts.manifest.meta["ids"]) for counts in fresh.values()),
        nulls=sum(int(counts.manifest.meta["nulls"]) for counts in fresh.values()),
    )


def _name(counts: DayCounts) -> str:
    return f"{counts.table}/{counts.day}"


def _check_sources(spec: RunSpec, lake: Lake) -> None:
    for name, table in spec.config.tables.items():
        if not lake.days(f"raw/{table.dataset}"):
            raise DataError(
                f"table '{name}' counts {table.source}, but the lake has no raw/{table.dataset}",
                where=f"{lake.url}/raw/{table.dataset}",
                fix=f"deliver raw/{table.dataset}, or take the table and its features out",
            )


def _count(spec: RunSpec, lake: Lake, missing: Sequence[DayCounts]) -> dict[str, Published]:
    # Polars and Dask are imported only when there is something to count.
    from tasks.longtail.cluster import open_runner
    from tasks.longtail.counting import FileTask, count_file
    from tasks.longtail.day_counts import publish_counts, tasks_of
    from tasks.longtail.exchange import scratch_folder
    from tasks.longtail.seen_once import count_min_sketch

    if any(counts.sketch_confidence is not None for counts in missing):
        count_min_sketch()  # refused before the work, not in the middle of it
    groups: dict[tuple[str, date], list[DayCounts]] = defaultdict(list)
    for counts in missing:
        groups[counts.settings.dataset, counts.day].append(counts)
    size = sum(
        entry.bytes for group in groups.values() for entry in group[0].partition.manifest.files
    )
    published: dict[str, Published] = {}
    with scratch_folder(lake) as scratch, open_runner(spec.config.dask, size, lake) as runner:
        tasks: dict[tuple[str, date], list[FileTask]] = {
            key: tasks_of(group, scratch, spec.config.dask.batch_bytes)
            for key, group in groups.items()
        }
        every = [task for key in groups for task in tasks[key]]
        totals = iter(runner.map("count files", count_file, every))
        for key, group in groups.items():
            of_files = [next(totals) for _ in tasks[key]]
            for counts in group:
                published[_name(counts)] = publish_counts(
                    lake, counts, tasks[key], of_files, runner
                )
    log("counted", table_days=len(missing), files=len(every))
    return published
