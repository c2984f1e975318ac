"""Third stage of the examples: everything about the users of one part.

Encodes users once, not once an event; a row of examples only points at its user's codes and at
its slice of the user's item sequence, and the slices are copied once, in the order of the shard
that they are written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa

from tasks.errors import DataError
from tasks.lake import Lake
from tasks.longtail.columns import array_of, to_arrow
from tasks.longtail.encoding import encoder_of
from tasks.longtail.events import read_events
from tasks.longtail.example_events import CorpusIndex, TrainEvents, corpus_index, train_events
from tasks.longtail.exchange import Scratch, read_part_frame, write_parts
from tasks.longtail.features import FeaturePlan
from tasks.longtail.history import OtherItems, distinct_items, final_histories, histories
from tasks.longtail.hot_users import HotUser, events_before, item_counts
from tasks.longtail.lists import Int64s, ListColumn
from tasks.longtail.neighbours import paired
from tasks.longtail.numbers import NumberColumn
from tasks.longtail.permutation import Permutation, shard_of
from tasks.longtail.side_tables import newest_of


@dataclass(frozen=True)
class PartTask:
    """Making of the examples of one part of the users, or of one slice of a hot user."""

    scratch: Scratch
    part: int
    parts: int
    train_events: tuple[str, ...]
    test_events: tuple[str, ...]
    corpus: str
    """Scratch file of the corpus (see `corpus_index`)."""
    features: tuple[FeaturePlan, ...]
    vocabularies: Mapping[str, str]
    """Lake path of each table's vocabulary."""
    users: tuple[str, ...]
    """Scratch files of the split users table, oldest day first."""
    users_before: int
    """How many of them lie before the first test day."""
    history_length: int
    history: Literal["past", "others"]
    """Which of the user's items a history holds (`data.history`)."""
    first_user: int
    """Index of the part's first user."""
    first_row: int
    """Number of train rows in the parts before."""
    rows: int
    """Train rows in all parts."""
    shards: int
    seed: int
    hot: tuple[HotUser, ...] = ()
    """Hot users whose home the part is: their train rows are made elsewhere."""
    slice_of: HotUser | None = None
    """The user whose slice it is, for a slice."""

    @property
    def home(self) -> int:
        """Part of the users that the rows belong to."""
        return self.part if self.slice_of is None else self.slice_of.home

    def target(self, name: str) -> str:
        """Lake path of one of the part's outputs."""
        return self.scratch.file(f"{name}-{self.part:05d}")


@dataclass(frozen=True)
class PartResult:
    """Numbers of a part's test events, and of the pairs of its users' items."""

    test_users: int = 0
    test_users_without_target: int = 0
    test_events: int = 0
    test_events_unseen_user: int = 0
    test_events_unseen_item: int = 0
    pairs: int = 0


def build_part(task: PartTask) -> PartResult:
    """Makes a part's train rows (split by shard), its users and its test users.

    Raises:
        DataError: The users table lacks a column or has IDs of another type.
    """
    lake = task.scratch.lake()
    corpus = corpus_index(task.scratch, task.corpus)
    context = sorted({plan.column for plan in task.features if plan.source == "context"})
    train = train_events(
        lake, task.train_events, task.part, corpus, context, _events_elsewhere(task)
    )
    attributes = _attributes(lake, task, task.users_before, train.user_ids.dtype)
    codes = {
        plan.name: _encode(lake, task, plan, train.user_ids, attributes)
        for plan in task.features
        if plan.source != "context"
    }
    seen, counts = _items_and_counts(task, corpus, train)
    if task.history == "past":
        past = histories(train.user_of, train.timestamps, train.items, task.history_length)
        final = final_histories(train.starts, train.ends, train.items, task.history_length)
    else:
        others = OtherItems(train.user_ids, seen, task.seed)
        past = others.histories(train.user_of, train.items, task.history_length)
        final = others.final_histories(task.history_length)
    _write_train(lake, task, train, codes, past)
    if task.slice_of is not None:
        return PartResult()
    last_context = train.columns[train.ends - 1].select(context)
    _write_users(lake, task, train, codes, last_context, seen, final)
    result = _write_test(lake, task, corpus, train, counts, last_context, seen, final)
    return replace(result, pairs=paired(seen))


def _events_elsewhere(task: PartTask) -> list[pl.DataFrame]:
    """Events before the slice, or the last events of the part's hot users."""
    if task.slice_of is not None:
        wanted = [(task.slice_of, task.part, task.history_length)]
    else:
        wanted = [(user, user.slices.stop, max(1, task.history_length)) for user in task.hot]
    found = [events_before(task.scratch, *of_user) for of_user in wanted]
    return [events for events in found if events is not None]


def _items_and_counts(
    task: PartTask, corpus: CorpusIndex, train: TrainEvents
) -> tuple[ListColumn, Int64s]:
    """Distinct items of each train user, ascending, and the number of its train events.

    Those of a hot user come from all of its slices.
    """
    users, items = [train.user_of], [train.items]
    counts = np.bincount(train.user_of[train.written], minlength=train.num_users)
    for user in task.hot if task.slice_of is None else (task.slice_of,):
        touched = item_counts(task.scratch, user)
        [number] = (train.user_ids == user.user_id).arg_true()
        users.append(np.full(touched.height, number))
        items.append(corpus.items(touched["item_id"]))
        counts[number] += int(touched["train_count"].sum())
    seen = distinct_items(np.concatenate(users), np.concatenate(items), train.num_users)
    return seen, counts.astype(np.int64)


def _attributes(lake: Lake, task: PartTask, files: int, dtype: pl.DataType) -> pl.DataFrame | None:
    """The part's newest rows of the first so many files of the users table."""
    if not task.users:
        return None
    frames = [read_part_frame(lake, [path], task.home) for path in task.users[:files]]
    rows = newest_of(frames, "user_id")
    if rows.schema["user_id"] == pl.Null:  # no file names a user
        rows = rows.cast({"user_id": dtype})
    if rows.schema["user_id"] != dtype:
        raise DataError(
            f"user_id is {dtype} in raw/interactions and {rows.schema['user_id']} in raw/users",
            fix="deliver both with one type",
        )
    return rows


def _encode(
    lake: Lake,
    task: PartTask,
    plan: FeaturePlan,
    user_ids: pl.Series,
    attributes: pl.DataFrame | None,
) -> ListColumn | NumberColumn:
    if plan.source == "key":
        encoder = encoder_of(lake.url, task.vocabularies[plan.table], plan.table)
        return encoder.code_lists(user_ids, listed=False)
    assert attributes is not None
    known = attributes.select("user_id", plan.column)
    ids = pl.DataFrame({"user_id": user_ids}).join(
        known, on="user_id", how="left", maintain_order="left"
    )[plan.column]
    if plan.numeric:
        return NumberColumn.of(ids)
    encoder = encoder_of(lake.url, task.vocabularies[plan.table], plan.table)
    return encoder.code_lists(ids, listed=plan.listed)


def _encode_context(
    lake: Lake, task: PartTask, plan: FeaturePlan, values: pl.DataFrame
) -> ListColumn:
    encoder = encoder_of(lake.url, task.vocabularies[plan.table], plan.table)
    return encoder.code_lists(values[plan.column], listed=False)


def _write_train(
    lake: Lake,
    task: PartTask,
    train: TrainEvents,
    codes: Mapping[str, ListColumn | NumberColumn],
    past: ListColumn,
) -> None:
    written = np.flatnonzero(train.written)
    numbers = np.arange(task.first_row, task.first_row + written.size, dtype=np.int64)
    places = Permutation(task.rows, task.seed).places(numbers)
    shard, slot = shard_of(places, task.rows, task.shards)
    order = np.argsort(places)
    bounds = np.searchsorted(shard[order], np.arange(task.shards + 1))
    weights = train.columns["weight"].to_numpy()
    per_event = {
        plan.name: _encode_context(lake, task, plan, train.columns)
        for plan in task.features
        if plan.source == "context"
    }

    def rows_of(number: int) -> pa.Table:
        chosen = order[bounds[number] : bounds[number + 1]]
        rows = written[chosen]
        users = train.user_of[rows]
        columns = {
            "user": array_of(users + task.first_user),
            "item": array_of(train.items[rows]),
            "history": past.take(rows).to_arrow(),
            "timestamp": array_of(train.timestamps[rows]),
            "weight": array_of(weights[rows]),
        }
        for plan in task.features:
            if plan.source == "context":
                columns[plan.name] = per_event[plan.name].take(rows).to_arrow()
            else:
                columns[plan.name] = codes[plan.name].take(users).to_arrow()
        columns["slot"] = array_of(slot[chosen])
        return pa.table(columns)

    write_parts(lake, task.target("train"), task.shards, rows_of)


def _write_users(
    lake: Lake,
    task: PartTask,
    train: TrainEvents,
    codes: Mapping[str, ListColumn | NumberColumn],
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
    corpus: CorpusIndex,
    train: TrainEvents,
    counts: Int64s,
    last_context: pl.DataFrame,
    seen: ListColumn,
    final: ListColumn,
) -> PartResult:
    events = read_events(lake, task.test_events, task.part)
    user_ids = events["user_id"].unique().sort()
    known = pl.DataFrame({"user_id": train.user_ids}).with_row_index("known")
    users = pl.DataFrame({"user_id": user_ids}).with_row_index("test_user")
    users = users.join(known, on="user_id", how="left", maintain_order="left")
    placed = events.select("user_id", item=pl.Series(corpus.items(events["item_id"]))).join(
        users, on="user_id", how="left"
    )
    items = placed["item"].to_numpy()
    counted = np.append(corpus.train_count, 0)
    targets = _targets(placed, users.height, seen)
    known_of = users["known"].cast(pl.Int64).fill_null(-1).to_numpy()
    attributes = _attributes(lake, task, len(task.users), user_ids.dtype)
    columns = {
        "user_id": _id_column(user_ids),
        "user": array_of(np.where(known_of < 0, -1, known_of + task.first_user)),
    }
    for plan in task.features:
        if plan.source == "context":
            # What the user's last train event said; nothing is known about a new user.
            values = last_context.select(pl.all().gather(users["known"]))
            columns[plan.name] = _encode_context(lake, task, plan, values).to_arrow()
        else:
            columns[plan.name] = _encode(lake, task, plan, user_ids, attributes).to_arrow()
    columns["history"] = final.take_or_empty(known_of).to_arrow()
    columns["seen"] = seen.take_or_empty(known_of).to_arrow()
    columns["targets"] = targets.to_arrow()
    columns["train_count"] = array_of(np.append(counts, 0)[known_of])
    table = pa.table(columns)
    write_parts(lake, task.target("test"), 1, lambda _: table)
    return PartResult(
        test_users=users.height,
        test_users_without_target=int((targets.lengths == 0).sum()),
        test_events=events.height,
        test_events_unseen_user=int(placed["known"].is_null().sum()),
        test_events_unseen_item=int((counted[items] == 0).sum()),
    )


def _targets(placed: pl.DataFrame, test_users: int, seen: ListColumn) -> ListColumn:
    """Corpus indices that each test user touched on the test days and never before.

    Args:
        placed: Corpus index `item` (-1 for none), `test_user` and train user `known` (null for
            none) of each test event.
        test_users: Number of test users.
        seen: Distinct items of each train user, ascending.
    """
    inside = placed.filter(pl.col("item") >= 0)
    items = inside["item"].to_numpy().astype(np.int64)
    known = inside["known"].cast(pl.Int64).fill_null(-1).to_numpy()
    touched = (np.repeat(np.arange(len(seen)), seen.lengths) << 32) | seen.values
    asked = (known << 32) | items
    place = np.searchsorted(touched, asked)
    again = np.append(touched, -1)[place] == asked
    fresh = ~again | (known < 0)
    users = inside["test_user"].to_numpy().astype(np.int64)
    return distinct_items(users[fresh], items[fresh].astype(np.int32), test_users)


def _id_column(ids: pl.Series) -> pa.ChunkedArray:
    return to_arrow(pl.DataFrame({"id": ids})).column("id")
