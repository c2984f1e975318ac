"""First stage of the examples: each file's events, split by user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from tasks.errors import DataError, LakeError
from tasks.lake import Lake
from tasks.longtail.columns import collect, from_arrow, id_or_nothing, read_schema, scan, to_arrow
from tasks.longtail.data_split import Role, rows_of_role
from tasks.longtail.event_file import EventFile
from tasks.longtail.exchange import Scratch, read_part, write_parts, write_placed
from tasks.longtail.hash_index import numbered
from tasks.longtail.hot_users import DAY_US, HotUser, place_events, stats_file, tail_file

RECENT_UNIT = 1 << 20
"""Units of an event of the last instant before the first test day."""
_NULL = "Null"
_SPLIT = "__split"
_NEEDED = ["user_id", "item_id", "timestamp"]
_EVENT = ("user_id", "item_id", "timestamp", "weight")


@dataclass(frozen=True)
class SplitTask:
    """Splitting of one stretch of a file of interactions."""

    scratch: Scratch
    file: EventFile
    first_row: int
    rows: int
    role: Role
    number: int
    parts: int
    context: tuple[str, ...]
    """Columns that features of the user tower read from the event."""
    cut_us: int
    """Start of the first test day, in microseconds; no train event may lie on or after it."""
    split: str | None = None
    """Column that says which rows have the role; None where the file's day says it."""
    hot: tuple[HotUser, ...] = ()
    """Users whose events go to slices."""

    @property
    def target(self) -> str:
        """Lake path of the split events."""
        return self.scratch.file(f"{self.role}-events-{self.number:05d}")


@dataclass(frozen=True)
class SplitResult:
    """What a stretch held."""

    path: str
    rows: int
    dropped: int
    """Events without a user, an item or a time."""
    types: tuple[tuple[str, str], ...]
    """Type of each ID column; `Null` where the file has Arrow's null type."""


def split_file(task: SplitTask) -> SplitResult:
    """Splits events by the hash of the user, so that each user lies in one part or in its slices.

    Raises:
        DataError: A column is missing or of the wrong type, a training event happened on or
            after the first test day, or a row is neither trained on nor tested on.
        LakeError: The file is not the one that was delivered.
    """
    lake = task.scratch.lake()
    path = task.file.path
    metadata = read_schema(lake, path)
    schema = metadata.schema.to_arrow_schema()
    where = f"{lake.url}/{path}"
    if metadata.num_rows != task.file.rows:
        raise LakeError(
            f"the file holds {metadata.num_rows} rows, but its manifest says {task.file.rows}",
            where=where,
            fix="deliver the day again, with a manifest of the files that are there",
        )
    ids = ("user_id", "item_id", *task.context)
    types = {}
    picked = []
    for column in ids:
        dtype = _id_type(schema, column, where)
        types[column] = str(dtype)
        picked.append(pl.col(column).cast(dtype))
    picked.append(_timestamp(schema, where))
    columns = [*ids, "timestamp"]
    if "weight" in schema.names:
        columns.append("weight")
        picked.append(pl.col("weight").cast(pl.Float32).fill_null(1.0))
    else:
        picked.append(pl.lit(1.0, pl.Float32).alias("weight"))
    if task.split is not None:
        _id_type(schema, task.split, where)
        columns.append(task.split)
        picked.append(pl.col(task.split).alias(_SPLIT))
    query = scan(lake, path, list(dict.fromkeys(columns))).slice(task.first_row, task.rows)
    frame, dropped = _events(task, query.select(picked), where)
    if task.role == "train":
        _check_cut(frame, task.cut_us, where)
    places = place_events(frame, task.parts, task.hot)
    batches = task.hot[-1].slices.stop if task.hot else task.parts
    write_placed(lake, task.target, frame, places, batches)
    return SplitResult(path, frame.height, dropped, tuple(sorted(types.items())))


def _events(task: SplitTask, query: pl.LazyFrame, where: str) -> tuple[pl.DataFrame, int]:
    """The events of the task's role, and how many of that role lack a needed value."""
    lake = task.scratch.lake()
    if task.split is None:
        [frame] = collect(lake, task.file.path, [query.drop_nulls(_NEEDED)])
        return frame, task.rows - frame.height
    [rows] = collect(lake, task.file.path, [query])
    chosen = rows_of_role(rows, _SPLIT, task.role, where).drop(_SPLIT)
    frame = chosen.drop_nulls(_NEEDED)
    return frame, chosen.height - frame.height


def _id_type(schema: pa.Schema, column: str, where: str) -> pl.DataType:
    dtype, listed = id_or_nothing(schema, column, where)
    if listed:
        raise DataError(f"column '{column}' holds lists", where=where, fix="deliver one ID a row")
    return dtype


def _timestamp(schema: pa.Schema, where: str) -> pl.Expr:
    index = schema.get_field_index("timestamp")
    found = schema.field(index).type if index >= 0 else None
    if found is not None and pa.types.is_null(found):
        return pl.lit(None, pl.Int64).alias("timestamp")
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
    known: dict[str, str] = {}
    for result in results:
        found = {name: kind for name, kind in result.types if kind != _NULL}
        for name, kind in found.items():
            if known.setdefault(name, kind) != kind:
                raise DataError(
                    f"column '{name}' is {kind}, before it was {known[name]}",
                    where=f"{url}/{result.path}",
                    fix="deliver all days with one type",
                )


def read_events(lake: Lake, paths: Sequence[str], part: int) -> pl.DataFrame:
    """One part of the split events of all files, in the order of the files."""
    frames = [from_arrow(read_part(lake, [path], part)) for path in paths]
    # Relaxed: a file whose column has Arrow's null type takes the type of the others.
    return pl.concat(frames, how="vertical_relaxed")


@dataclass(frozen=True)
class StatsTask:
    """Statistics of one part's, or one slice's, train events."""

    scratch: Scratch
    events: tuple[str, ...]
    part: int
    hot: tuple[Any, ...] = ()
    """IDs of the hot users whose home the part is; their events are elsewhere."""
    tail: int = 0
    """For a slice: how many of its last events are left for the slice behind it."""
    ages_from_us: int = 0
    """Instant from which ages are measured, microseconds."""
    half_life_days: float | None = None
    """Age at which an event counts half in `recent_units`; None when nobody asks."""

    @property
    def target(self) -> str:
        """Lake path of the statistics."""
        return stats_file(self.scratch, self.part)


@dataclass(frozen=True)
class PartStats:
    """Sizes of a part or slice.

    Attributes:
        rows: Train events.
        users: Train users; a slice's belongs to its home.
        hot_ranks: Place of each of the task's hot users in the order of the part's users.
    """

    rows: int
    users: int
    hot_ranks: tuple[int, ...]


def aged_units(
    timestamps: npt.NDArray[np.int64], ages_from_us: int, half_life_days: float
) -> npt.NDArray[np.float64]:
    """What events weigh by their age, in whole multiples of `1 / RECENT_UNIT`, `[N]`."""
    age = (ages_from_us - timestamps) / DAY_US
    return np.rint(np.exp2(-age / half_life_days) * RECENT_UNIT)


def item_stats(task: StatsTask) -> PartStats:
    """Counts each item's train interactions and the users who touched it."""
    lake = task.scratch.lake()
    events = read_events(lake, task.events, task.part)
    users, user_of = numbered(events["user_id"])
    items, item_of = numbered(events["item_id"])
    pairs = np.sort((item_of.astype(np.int64) << 32) | user_of)
    touched = pairs[np.append(True, pairs[1:] != pairs[:-1])] if pairs.size else pairs
    stats = pl.DataFrame(
        {
            "item_id": items,
            "train_count": np.bincount(item_of, minlength=len(items)).astype(np.int64),
            "train_users": np.bincount(touched >> 32, minlength=len(items)).astype(np.int64),
        }
    )
    if task.half_life_days is not None:
        units = aged_units(events["timestamp"].to_numpy(), task.ages_from_us, task.half_life_days)
        # Whole numbers: the sum is the same in any order.
        recent = np.bincount(item_of, weights=units, minlength=len(items)).astype(np.int64)
        stats = stats.with_columns(pl.Series("recent_units", recent))
    table = to_arrow(stats)
    write_parts(lake, task.target, 1, lambda _: table)
    if task.tail:
        # The order that histories are read in (see `example_events.order_of`).
        context = [name for name in events.columns if name not in _EVENT]
        by = ["timestamp", "item_id", "weight", *context]
        last = to_arrow(events.sort(by, nulls_last=True).tail(task.tail))
        write_parts(lake, tail_file(task.scratch, task.part), 1, lambda _: last)
        return PartStats(events.height, 0, ())
    hot = pl.Series("user_id", task.hot, dtype=events.schema["user_id"])
    everybody, ranks = numbered(pl.concat([users, hot]))
    return PartStats(events.height, len(everybody), tuple(ranks[len(users) :].tolist()))
