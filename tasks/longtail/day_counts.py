"""A day's counts of one table, from the raw files to the published count table."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.errors import LakeError
from tasks.lake import Lake, Output, Published
from tasks.longtail.cluster import Runner
from tasks.longtail.count_plan import DayCounts
from tasks.longtail.counting import (
    ColumnTotals,
    FileTask,
    MergeTask,
    check_sum,
    common_type,
    merge_part,
)
from tasks.longtail.exchange import Scratch
from tasks.longtail.id_hash import parts_for

ROWS_PER_PART = 1 << 21
"""Raw rows for each part of a day's counts; a merging task holds one part in memory."""


def tasks_of(group: Sequence[DayCounts], scratch: Scratch, batch_bytes: int) -> list[FileTask]:
    """One task for each file of a day; each counts the columns of all the tables in `group`."""
    first = group[0]
    columns = tuple(sorted({counts.settings.column for counts in group}))
    parts = parts_for(first.partition.manifest.rows, ROWS_PER_PART)
    paths = sorted(path for path in first.partition.files() if path.endswith(".parquet"))
    return [
        FileTask(
            scratch,
            path,
            columns,
            parts,
            batch_bytes,
            f"{first.settings.dataset}-{first.day}-{number}",
            first.split,
        )
        for number, path in enumerate(paths)
    ]


def publish_counts(
    lake: Lake,
    counts: DayCounts,
    tasks: Sequence[FileTask],
    totals: Sequence[Sequence[ColumnTotals]],
    runner: Runner,
) -> Published:
    """Merges a table's counts over a day's files and publishes them.

    Args:
        lake: The lake.
        counts: The table and day.
        tasks: The tasks that counted the day's files.
        totals: Their results.
        runner: Where the merging runs.

    Raises:
        DataError: The files hold IDs of different types.
        LakeError: The counts do not add up to the rows.
    """
    column = counts.settings.column
    own = [total for of_file in totals for total in of_file if total.column == column]
    where = f"{lake.url}/{counts.partition.path} column {column}"

    def write(output: Output) -> None:
        kind = common_type(own, where)
        partials = tuple(path for total in own for path in total.partials)
        parts = tasks[0].parts
        merges = [
            MergeTask(
                lake.url,
                partials,
                part,
                output.uri(f"part-{part:05d}.parquet"),
                counts.sketch_confidence,
            )
            for part in range(parts)
        ]
        results = runner.map(f"merge {counts.table} {counts.day}", merge_part, merges)
        rows = sum(total.rows for total in own)
        nulls = sum(total.nulls for total in own)
        once = sum(result.seen_once for result in results)
        events = sum(result.events for result in results) + once
        check_sum(events, nulls, rows, where)
        _check_rows(counts, totals, where)
        output.meta.update(
            ids=sum(result.ids for result in results) + once,
            events=events,
            nulls=nulls,
            parts=parts,
            id_type=kind,
        )
        if counts.sketch_confidence is not None:
            output.meta["seen_once"] = once

    return lake.build(
        counts.dataset, counts.day, write, inputs=counts.inputs, settings=counts.shape
    )


def _check_rows(counts: DayCounts, totals: Sequence[Sequence[ColumnTotals]], where: str) -> None:
    """Checks that the files are those that were delivered.

    Raises:
        LakeError: They hold another number of rows.
    """
    found = sum(of_file[0].file_rows for of_file in totals)
    delivered = counts.partition.manifest.rows
    if found != delivered:
        raise LakeError(
            f"the day's files hold {found} rows, but its manifest says {delivered}",
            where=where,
            fix="a file was exchanged after its delivery; deliver the day again",
        )
