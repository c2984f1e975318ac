"""Exact counts of the IDs in a day's files.

Each file is aggregated once, all its ID columns in one pass of Polars' streaming engine (the
fastest of Polars, DuckDB and pyarrow's group-by on skewed 64-bit IDs), and its counts are left
split by hash. Then each part is merged over the files and written straight to the lake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow.parquet as pq

from tasks.errors import DataError, LakeError
from tasks.lake import Lake
from tasks.longtail.columns import collect, id_field, read_schema, scan, to_arrow
from tasks.longtail.exchange import Scratch, read_part_frame, write_split


@dataclass(frozen=True)
class FileTask:
    """Counting of one file's columns."""

    scratch: Scratch
    path: str
    """The raw file, a lake path."""
    columns: tuple[str, ...]
    parts: int
    name: str
    """Name of the file's intermediate files."""

    def partial(self, column: str) -> str:
        """Lake path of a column's counts in this file."""
        return self.scratch.file(f"{self.name}-{column}")


@dataclass(frozen=True)
class ColumnTotals:
    """What a file holds of a column."""

    column: str
    rows: int
    """Elements: rows, or the elements of all lists; a null list is one element, a null."""
    nulls: int
    id_type: str


def count_file(task: FileTask) -> list[ColumnTotals]:
    """Counts the IDs of one file.

    Raises:
        DataError: The file cannot be read, or a column is missing or holds no IDs.
    """
    lake = task.scratch.lake()
    metadata = read_schema(lake, task.path)
    schema = metadata.schema.to_arrow_schema()
    where = f"{lake.url}/{task.path}"
    fields = {name: id_field(schema, name, where) for name in task.columns}
    frame = scan(lake, task.path, task.columns)
    queries = []
    for name, (dtype, listed) in fields.items():
        column = pl.col(name)
        values = frame.select(column)
        if listed:
            values = values.explode(name, empty_as_null=False)
        ids = values.select(column.cast(dtype).alias("id"))
        queries.append(ids.group_by("id").agg(pl.len().cast(pl.Int64).alias("count")))
        # The number of elements comes from the list lengths, not from the exploded rows, so that
        # the sum of the counts is checked against something else than itself.
        queries.append(frame.select(column.list.len().fill_null(1).sum() if listed else pl.len()))
    answers = collect(lake, task.path, queries)
    totals = []
    for number, (name, (dtype, listed)) in enumerate(fields.items()):
        counts, elements = answers[2 * number], answers[2 * number + 1]
        rows = int(elements.item() or 0) if listed else metadata.num_rows
        nulls = int(counts.filter(pl.col("id").is_null())["count"].sum())
        write_split(lake, task.partial(name), counts.drop_nulls("id"), "id", task.parts)
        totals.append(ColumnTotals(name, rows, nulls, str(dtype)))
    return totals


@dataclass(frozen=True)
class MergeTask:
    """Merging of one part of a day's counts."""

    url: str
    partials: tuple[str, ...]
    part: int
    target: str
    """The file to be written, a lake path."""


def merge_part(task: MergeTask) -> tuple[int, int]:
    """Merges a part over the files and writes it, ordered by ID.

    Returns:
        Distinct IDs and the sum of their counts.
    """
    lake = Lake(task.url)
    partial = read_part_frame(lake, task.partials, task.part)
    merged = partial.group_by("id").agg(pl.col("count").sum()).sort("id")
    with lake.open_output(task.target) as stream:
        pq.write_table(to_arrow(merged), stream, compression="zstd", use_dictionary=["count"])
    return merged.height, int(merged["count"].sum())


def common_type(totals: Sequence[ColumnTotals], where: str) -> str:
    """Type of a day's IDs.

    Raises:
        DataError: The files of the day differ.
    """
    types = sorted({total.id_type for total in totals})
    if len(types) > 1:
        raise DataError(
            f"column '{totals[0].column}' is {' in one file and '.join(types)} in another",
            where=where,
            fix="deliver the day with one type",
        )
    return types[0]


def check_sum(counted: int, nulls: int, rows: int, where: str) -> None:
    """Checks that no element was lost or counted twice.

    Raises:
        LakeError: The counts do not add up.
    """
    if counted + nulls != rows:
        raise LakeError(
            f"the counts do not add up: {counted} counted + {nulls} nulls != {rows} elements",
            where=where,
            fix="the files may have changed while they were read; run the step again",
        )
