"""First stage of the examples: each file's events, split by user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import polars as pl
import pyarrow as pa

from tasks.errors import DataError
from tasks.longtail.columns import collect, id_field, read_schema, scan, to_arrow
from tasks.longtail.exchange import Scratch, read_part_frame, write_parts, write_split

Role = Literal["train", "test"]


@dataclass(frozen=True)
class SplitTask:
    """Splitting of one file of interactions."""

    scratch: Scratch
    path: str
    role: Role
    number: int
    parts: int
    context: tuple[str, ...]
    """Columns that features of the user tower read from the event."""
    cut_us: int
    """Start of the first test day, in microseconds; no train event may lie on or after it."""

    @property
    def target(self) -> str:
        """Lake path of the split events."""
        return self.scratch.file(f"{self.role}-events-{self.number:05d}")


@dataclass(frozen=True)
class SplitResult:
    """What a file held."""

    path: str
    rows: int
    dropped: int
    """Events without a user, an item or a time."""
    types: tuple[tuple[str, str], ...]
    """Type of each ID column."""


def split_file(task: SplitTask) -> SplitResult:
    """Splits a file's events by the hash of the user, so that each user lies in one part.

    Raises:
        DataError: A column is missing or of the wrong type, or a training event happened on or
            after the first test day.
    """
    lake = task.scratch.lake()
    metadata = read_schema(lake, task.path)
    schema = metadata.schema.to_arrow_schema()
    where = f"{lake.url}/{task.path}"
    ids = ("user_id", "item_id", *task.context)
    types = {}
    picked = []
    for column in ids:
        dtype, listed = id_field(schema, column, where)
        if listed:
            raise DataError(
                f"column '{column}' holds lists", where=where, fix="deliver one ID a row"
            )
        types[column] = str(dtype)
        picked.append(pl.col(column).cast(dtype))
    picked.append(_timestamp(schema, where))
    columns = [*ids, "timestamp"]
    if "weight" in schema.names:
        columns.append("weight")
        picked.append(pl.col("weight").cast(pl.Float32).fill_null(1.0))
    else:
        picked.append(pl.lit(1.0, pl.Float32).alias("weight"))
    query = (
        scan(lake, task.path, columns)
        .select(picked)
        .drop_nulls(["user_id", "item_id", "timestamp"])
    )
    frame = collect(lake, task.path, [query])[0]
    if task.role == "train":
        _check_cut(frame, task.cut_us, where)
    write_split(lake, task.target, frame, "user_id", task.parts)
    dropped = metadata.num_rows - frame.height
    return SplitResult(task.path, frame.height, dropped, tuple(sorted(types.items())))


def _timestamp(schema: pa.Schema, where: str) -> pl.Expr:
    index = schema.get_field_index("timestamp")
    found = schema.field(index).type if index >= 0 else None
    if found is None or not pa.types.is_timestamp(found):
        raise DataError(
            f"column 'timestamp' is {found or 'missing'}, not a time",
            where=where,
            fix="deliver it as timestamp[us, tz=UTC]",
        )
    return pl.col("timestamp").dt.timestamp("us").alias("timestamp")


def _check_cut(frame: pl.DataFrame, cut_us: int, where: str) -> None:
    late = frame.filter(pl.col("timestamp") >= cut_us)
    if late.height:
        newest = datetime.fromtimestamp(int(late["timestamp"].to_numpy().max()) / 1e6, UTC)
        raise DataError(
            f"{late.height} training event(s) happened on a test day, the newest at "
            f"{newest:%Y-%m-%d %H:%M:%S} UTC",
            where=where,
            fix="put each event into the partition of its UTC day",
        )


def check_types(results: Sequence[SplitResult], url: str) -> None:
    """Checks that all files agree on the types of the IDs.

    Raises:
        DataError: They do not.
    """
    for result in results:
        if result.types != results[0].types:
            raise DataError(
                f"the types of the IDs are {dict(result.types)}, before they were "
                f"{dict(results[0].types)}",
                where=f"{url}/{result.path}",
                fix="deliver all days with one type",
            )


@dataclass(frozen=True)
class StatsTask:
    """Statistics of one part's train events."""

    scratch: Scratch
    events: tuple[str, ...]
    part: int

    @property
    def target(self) -> str:
        """Lake path of the statistics."""
        return self.scratch.file(f"item-stats-{self.part:05d}")


def item_stats(task: StatsTask) -> tuple[int, int]:
    """Counts each item's train interactions and the users who touched it, in one part.

    Returns:
        Train events and train users of the part.
    """
    lake = task.scratch.lake()
    events = read_part_frame(lake, task.events, task.part)
    stats = events.group_by("item_id").agg(
        pl.len().cast(pl.Int64).alias("train_count"),
        pl.col("user_id").n_unique().cast(pl.Int64).alias("train_users"),
    )
    table = to_arrow(stats.sort("item_id"))
    write_parts(lake, task.target, 1, lambda _: table)
    return events.height, events["user_id"].n_unique()
