"""Third stage of the examples: everything about the users of one part.

Encodes users once, not once an event; a row of examples only points at its user's codes and at
its slice of the user's item sequence, and the slices are copied once, in the order of the shard
that they are written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from tasks.errors import DataError
from tasks.lake import Lake
from tasks.longtail.columns import array_of, to_arrow
from tasks.longtail.encoding import encoder_of
from tasks.longtail.exchange import Scratch, read_part, read_part_frame, write_parts
from tasks.longtail.features import FeaturePlan
from tasks.longtail.history import distinct_items, final_histories, histories
from tasks.longtail.id_hash import partition_of
from tasks.longtail.lists import Int32s, Int64s, ListColumn, runs
from tasks.longtail.permutation import Permutation, shard_of
from tasks.longtail.side_tables import newest_rows


@dataclass(frozen=True)
class PartTask:
    """Making of the examples of one part of the users."""

    scratch: Scratch
    part: int
    parts: int
    train_events: tuple[str, ...]
    test_events: tuple[str, ...]
    index: str
    """Scratch file of the corpus: `item_id`, `item` (index) and `id_rank`."""
    features: tuple[FeaturePlan, ...]
    vocabularies: Mapping[str, str]
    """Lake path of each table's vocabulary."""
    users_before: tuple[str, ...]
    """Files of the users table of the days before the first test day."""
    users_until: tuple[str, ...]
    """Files of the users table up to the last test day."""
    history_length: int
    first_user: int
    """Index of the part's first user."""
    first_row: int
    """Number of train rows in the parts before."""
    rows: int
    """Train rows in all parts."""
    shards: int
    seed: int

    def target(self, name: str) -> str:
        """Lake path of one of the part's outputs."""
        return self.scratch.file(f"{name}-{self.part:05d}")


@dataclass(frozen=True)
class PartResult:
    """Numbers of a part's test events."""

    test_users: int = 0
    test_users_without_target: int = 0
    test_events: int = 0
    test_events_unseen_user: int = 0
    test_events_unseen_item: int = 0


@dataclass(frozen=True)
class _Train:
    """A part's train events, ordered by user, time and item ID, and their users."""

    events: pl.DataFrame
    user_ids: pl.Series
    starts: Int64s
    ends: Int64s
    user_of: Int64s
    items: Int32s

    @property
    def num_users(self) -> int:
        return len(self.user_ids)


def build_part(task: PartTask) -> PartResult:
    """Makes a part's train rows (split by shard), its users and its test users.

    Raises:
        DataError: The users table lacks a column or has IDs of another type.
    """
    lake = task.scratch.lake()
    index = read_part_frame(lake, [task.index], 0)
    context = sorted({plan.column for plan in task.features if plan.source == "context"})
    train = _train_events(lake, task, index, context)
    attributes = _attributes(lake, task, task.users_before, train.user_ids.dtype)
    codes = {
        plan.name: _encode(lake, task, plan, train.user_ids, attributes)
        for plan in task.features
        if plan.source != "context"
    }
    last_context = train.events[train.ends - 1].select(context)
    seen = distinct_items(train.user_of, train.items, train.num_users)
    final = final_histories(train.starts, train.ends, train.items, task.history_length)
    _write_train(lake, task, train, codes)
    _write_users(lake, task, train, codes, last_context, seen, final)
    return _write_test(lake, task, index, train, last_context, seen, final)


def _train_events(
    lake: Lake, task: PartTask, index: pl.DataFrame, context: Sequence[str]
) -> _Train:
    events = read_part_frame(lake, task.train_events, task.part).join(
        index, on="item_id", how="inner"
    )
    # The columns behind the item ID only order events that are the same event twice.
    events = events.sort(["user_id", "timestamp", "id_rank", "weight", *context], nulls_last=True)
    starts, user_of = runs(events["user_id"].rle_id().to_numpy())
    ends = np.append(starts[1:], events.height) if starts.size else starts
    return _Train(
        events=events,
        user_ids=events["user_id"][starts],
        starts=starts,
        ends=ends.astype(np.int64),
        user_of=user_of,
        items=events["item"].to_numpy().astype(np.int32),
    )


def _attributes(
    lake: Lake, task: PartTask, files: Sequence[str], dtype: pl.DataType
) -> pl.DataFrame | None:
    if all(plan.source != "attribute" for plan in task.features):
        return None
    rows = newest_rows(lake, "users", files, "user_id", task.features)
    if rows.schema["user_id"] != dtype:
        raise DataError(
            f"user_id is {dtype} in raw/interactions and {rows.schema['user_id']} in raw/users",
            fix="deliver both with one type",
        )
    return rows.filter(partition_of(rows["user_id"], task.parts) == task.part)


def _encode(
    lake: Lake,
    task: PartTask,
    plan: FeaturePlan,
    user_ids: pl.Series,
    attributes: pl.DataFrame | None,
) -> ListColumn:
    encoder = encoder_of(lake.url, task.vocabularies[plan.table], plan.table)
    if plan.source == "key":
        return encoder.code_lists(user_ids, listed=False)
    assert attributes is not None
    known = attributes.select("user_id", plan.column)
    ids = pl.DataFrame({"user_id": user_ids}).join(
        known, on="user_id", how="left", maintain_order="left"
    )[plan.column]
    return encoder.code_lists(ids, listed=plan.listed)


def _encode_context(
    lake: Lake, task: PartTask, plan: FeaturePlan, values: pl.DataFrame
) -> ListColumn:
    encoder = encoder_of(lake.url, task.vocabularies[plan.table], plan.table)
    return encoder.code_lists(values[plan.column], listed=False)


def _write_train(
    lake: Lake, task: PartTask, train: _Train, codes: Mapping[str, ListColumn]
) -> None:
    events = train.events
    numbers = np.arange(task.first_row, task.first_row + events.height, dtype=np.int64)
    places = Permutation(task.rows, task.seed).places(numbers)
    shard, slot = shard_of(places, task.rows, task.shards)
    order = np.argsort(places)
    bounds = np.searchsorted(shard[order], np.arange(task.shards + 1))
    timestamps = events["timestamp"].to_numpy()
    weights = events["weight"].to_numpy()
    past = histories(train.user_of, timestamps, train.items, task.history_length)
    per_event = {
        plan.name: _encode_context(lake, task, plan, events)
        for plan in task.features
        if plan.source == "context"
    }

    def rows_of(number: int) -> pa.Table:
        rows = order[bounds[number] : bounds[number + 1]]
        users = train.user_of[rows]
        columns = {
            "user": array_of(users + task.first_user),
            "item": array_of(train.items[rows]),
            "history": past.take(rows).to_arrow(),
            "timestamp": array_of(timestamps[rows]),
            "weight": array_of(weights[rows]),
        }
        for plan in task.features:
            if plan.source == "context":
                columns[plan.name] = per_event[plan.name].take(rows).to_arrow()
            else:
                columns[plan.name] = codes[plan.name].take(users).to_arrow()
        columns["slot"] = array_of(slot[rows])
        return pa.table(columns)

    write_parts(lake, task.target("train"), task.shards, rows_of)


def _write_users(
    lake: Lake,
    task: PartTask,
    train: _Train,
    codes: Mapping[str, ListColumn],
    last_context: pl.DataFrame,
    seen: ListColumn,
    final: ListColumn,
) -> None:
    columns = {
        "user_id": _id_column(train.user_ids),
        "user": array_of(np.arange(train.num_users, dtype=np.int64) + task.first_user),
    }
    for plan in task.features:
        if plan.source == "context":
            codes = {**codes, plan.name: _encode_context(lake, task, plan, last_context)}
        columns[plan.name] = codes[plan.name].to_arrow()
    columns["history"] = final.to_arrow()
    columns["seen"] = seen.to_arrow()
    table = pa.table(columns)
    write_parts(lake, task.target("users"), 1, lambda _: table)


def _write_test(
    lake: Lake,
    task: PartTask,
    index: pl.DataFrame,
    train: _Train,
    last_context: pl.DataFrame,
    seen: ListColumn,
    final: ListColumn,
) -> PartResult:
    events = read_part_frame(lake, task.test_events, task.part)
    user_ids = events["user_id"].unique().sort()
    known = pl.DataFrame({"user_id": train.user_ids}).with_row_index("known")
    users = pl.DataFrame({"user_id": user_ids}).with_row_index("test_user")
    users = users.join(known, on="user_id", how="left", maintain_order="left")
    placed = events.join(users, on="user_id", how="left").join(index, on="item_id", how="left")
    unseen_item = placed["train_count"].fill_null(0) == 0
    targets = _targets(placed, users, train)
    known_of = users["known"].cast(pl.Int64).fill_null(-1).to_numpy()
    attributes = _attributes(lake, task, task.users_until, user_ids.dtype)
    counts = np.append(train.ends - train.starts, 0)
    columns = {
        "user_id": _id_column(user_ids),
        "user": array_of(np.where(known_of < 0, -1, known_of + task.first_user)),
    }
    for plan in task.features:
        if plan.source == "context":
            # What the user's last train event said; nothing is known about a new user.
            values = last_context.select(pl.all().gather(users["known"]))
            codes = _encode_context(lake, task, plan, values)
        else:
            codes = _encode(lake, task, plan, user_ids, attributes)
        columns[plan.name] = codes.to_arrow()
    columns["history"] = final.take_or_empty(known_of).to_arrow()
    columns["seen"] = seen.take_or_empty(known_of).to_arrow()
    columns["targets"] = targets.to_arrow()
    columns["train_count"] = array_of(counts[known_of])
    table = pa.table(columns)
    write_parts(lake, task.target("test"), 1, lambda _: table)
    return PartResult(
        test_users=users.height,
        test_users_without_target=int((targets.lengths == 0).sum()),
        test_events=events.height,
        test_events_unseen_user=int(placed["known"].is_null().sum()),
        test_events_unseen_item=int(unseen_item.sum()),
    )


def _targets(placed: pl.DataFrame, users: pl.DataFrame, train: _Train) -> ListColumn:
    """Corpus indices that each test user touched on the test days and never before."""
    inside = placed.drop_nulls("item")
    wanted = (inside["test_user"].to_numpy().astype(np.int64) << 32) | inside["item"].to_numpy()
    test_user = np.full(train.num_users + 1, -1, dtype=np.int64)
    known = users.drop_nulls("known")
    test_user[known["known"].to_numpy()] = known["test_user"].to_numpy()
    touched_by = test_user[train.user_of]
    mine = touched_by >= 0
    touched = (touched_by[mine] << 32) | train.items[mine]
    fresh = np.setdiff1d(wanted, touched)
    return distinct_items(fresh >> 32, (fresh & 0xFFFFFFFF).astype(np.int32), users.height)


def _id_column(ids: pl.Series) -> pa.ChunkedArray:
    return to_arrow(pl.DataFrame({"id": ids})).column("id")


@dataclass(frozen=True)
class JoinTask:
    """Writing of one final file from the parts."""

    url: str
    sources: tuple[str, ...]
    """One scratch file a part."""
    batch: int
    """Which batch of each file."""
    target: str
    """The file to be written, a lake path."""
    by_slot: bool = False
    """Whether rows are brought into the order of the column `slot`, which is left out."""


ROW_GROUP = 1 << 16
"""Rows in a row group: a reader streams that much at a time."""


def join_parts(task: JoinTask) -> int:
    """Writes a final file; returns its rows."""
    import pyarrow.parquet as pq

    lake = Lake(task.url)
    table = read_part(lake, task.sources, task.batch)
    if task.by_slot:
        if len(task.sources) > 1:
            table = table.sort_by("slot")
        table = table.drop_columns("slot")
    with lake.open_output(task.target) as stream:
        pq.write_table(table, stream, compression="zstd", row_group_size=ROW_GROUP)
    return int(table.num_rows)
