"""Exact counts of the IDs in a day's files, in bounded memory.

A file is read in batches, all its ID columns at once. Each batch is aggregated by the fastest
engine for its type (integers: sorting, see `sorted_runs`; strings: Polars' streaming group-by)
and its counts are left in scratch files split by hash. Then each part is merged over all batches
of the day and written straight to the lake. Both the batches and the parts have a bounded size,
so memory depends neither on the number of rows nor on that of distinct IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import DataError, LakeError
from tasks.lake import Lake
from tasks.longtail.batches import IdFile, counted_types
from tasks.longtail.columns import array_of, from_arrow, to_arrow
from tasks.longtail.data_split import rows_of_role
from tasks.longtail.exchange import Scratch, read_part, write_parts, write_split
from tasks.longtail.id_hash import integers_of
from tasks.longtail.seen_once import write_apart
from tasks.longtail.sorted_runs import Run, count_integers, merge_counts

NO_IDS = str(pl.Null())
"""Type of the IDs of a column that holds none."""


@dataclass(frozen=True)
class FileTask:
    """Counting of one file's columns."""

    scratch: Scratch
    path: str
    """The raw file, a lake path."""
    columns: tuple[str, ...]
    parts: int
    batch_bytes: int
    """Bytes of the columns that are read at once."""
    name: str
    """Name of the file's intermediate files."""
    split: str | None = None
    """Column that says which rows are trained on, which alone are counted; None for all."""

    def partial(self, column: str, batch: int) -> str:
        """Lake path of a column's counts in a batch of this file."""
        return self.scratch.file(f"{self.name}-{batch}-{column}")


@dataclass(frozen=True)
class ColumnTotals:
    """What a file holds of a column."""

    column: str
    rows: int
    """Elements of the counted rows: the rows, or the elements of all lists; a null list is one
    element, a null."""
    nulls: int
    id_type: str
    partials: tuple[str, ...]
    """Lake paths of the counts."""
    file_rows: int
    """Rows of the file."""


def count_file(task: FileTask) -> list[ColumnTotals]:
    """Counts the IDs of one file.

    Raises:
        DataError: The file cannot be read, a column is missing or holds no IDs, or a row is
            neither trained on nor tested on.
    """
    lake = task.scratch.lake()
    split = () if task.split is None else (task.split,)
    file = IdFile(lake, task.path, tuple(dict.fromkeys((*task.columns, *split))))
    columns = {name: file.columns[name] for name in task.columns}
    counted = 0
    rows = dict.fromkeys(task.columns, 0)
    nulls = dict.fromkeys(task.columns, 0)
    partials: dict[str, list[str]] = {name: [] for name in task.columns}
    for number, batch in enumerate(file.batches(task.batch_bytes)):
        frame = rows_of_role(batch, task.split, "train", f"{lake.url}/{task.path}")
        counted += frame.height
        for name, column in columns.items():
            values = frame[name]
            if column.listed:
                # The number of elements comes from the list lengths, not from the exploded rows,
                # so that the sum of the counts is checked against something else than itself.
                rows[name] += int(values.list.len().fill_null(1).sum())
                values = values.explode(empty_as_null=False)
            nulls[name] += values.null_count()
            if column.dtype == pl.Null:
                continue
            ids = values.cast(column.dtype)
            target = task.partial(name, number)
            _write_counts(lake, target, ids.drop_nulls(), task.parts)
            partials[name].append(target)
    return [
        ColumnTotals(
            name,
            rows[name] if columns[name].listed else (file.rows if task.split is None else counted),
            nulls[name],
            kind,
            tuple(partials[name]),
            file.rows,
        )
        for name, kind in counted_types(columns).items()
    ]


def _write_counts(lake: Lake, path: str, ids: pl.Series, parts: int) -> None:
    if ids.dtype.is_integer():
        _write_run(lake, path, count_integers(integers_of(ids)), parts, ids.dtype == pl.Int64)
        return
    queries = ids.to_frame("id").lazy().group_by("id").agg(pl.len().cast(pl.Int64).alias("count"))
    write_split(lake, path, queries.collect(engine="streaming"), "id", parts)


def _write_run(lake: Lake, path: str, run: Run, parts: int, signed: bool) -> None:
    table = pa.table(
        {
            "id": array_of(run.integers(signed)),
            # A batch holds far fewer rows than 2**32.
            "count": array_of(run.counts.astype(np.uint32)),
        }
    )
    starts = run.starts(parts)
    write_parts(
        lake,
        path,
        parts,
        lambda part: table.slice(int(starts[part]), int(starts[part + 1] - starts[part])),
    )


@dataclass(frozen=True)
class MergeTask:
    """Merging of one part of a day's counts."""

    url: str
    partials: tuple[str, ...]
    part: int
    target: str
    """The file to be written, a lake path."""
    sketch_confidence: float | None
    """Confidence of the sketch of the IDs seen once; None to list those too."""


@dataclass(frozen=True)
class PartTotals:
    """What a part of a day's counts holds."""

    ids: int
    """IDs in the table."""
    events: int
    """Sum of their counts."""
    seen_once: int
    """IDs in the sketch."""


def merge_part(task: MergeTask) -> PartTotals:
    """Merges a part over the batches of a day and writes it.

    Integers are ordered by place (`id_hash.place_integers`), strings by their bytes.
    """
    lake = Lake(task.url)
    merged = _merge(lake, task)
    once = 0
    if task.sketch_confidence is not None:
        merged, once = write_apart(lake, task.target, merged, task.sketch_confidence)
    with lake.open_output(task.target) as stream:
        pq.write_table(merged, stream, compression="zstd", use_dictionary=["count"])
    return PartTotals(merged.num_rows, int(np.sum(merged["count"].to_numpy())), once)


def _merge(lake: Lake, task: MergeTask) -> pa.Table:
    if not task.partials:
        return pa.table({"id": pa.array([], pa.string()), "count": pa.array([], pa.int64())})
    found = read_part(lake, task.partials, task.part)
    kind = found.schema.field("id").type
    if not pa.types.is_integer(kind):
        counts = from_arrow(found).group_by("id").agg(pl.col("count").sum()).sort("id")
        return to_arrow(counts)
    run = merge_counts(found["id"].to_numpy(), found["count"].to_numpy())
    signed = bool(pa.types.is_signed_integer(kind))
    return pa.table({"id": array_of(run.integers(signed)), "count": array_of(run.counts)})


def common_type(totals: Sequence[ColumnTotals], where: str) -> str:
    """Type of a day's IDs; `Null` when no file can hold any.

    Raises:
        DataError: The files of the day differ.
    """
    types = sorted({total.id_type for total in totals} - {NO_IDS})
    if len(types) > 1:
        raise DataError(
            f"column '{totals[0].column}' is {' in one file and '.join(types)} in another",
            where=where,
            fix="deliver the day with one type",
        )
    return types[0] if types else NO_IDS


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
