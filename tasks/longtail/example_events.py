"""The train events of one part of the users, in the order that histories are read from.

Users become numbers first and one 64-bit key holds user and time, so that the order costs one
sort of integers; only events of one user at one instant are compared further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.lake import Lake
from tasks.longtail.events import read_events
from tasks.longtail.exchange import Scratch, read_part_frame
from tasks.longtail.hash_index import HashIndex, numbered
from tasks.longtail.lists import Int32s, Int64s


@dataclass(frozen=True)
class CorpusIndex:
    """Where each item stands in the corpus.

    Attributes:
        index: Item IDs to corpus indices.
        id_rank: Place of each item in the order of the IDs, `[num_items]`.
        train_count: Train interactions of each item, `[num_items]`.
    """

    index: HashIndex
    id_rank: Int32s
    train_count: Int64s

    def items(self, ids: pl.Series) -> Int32s:
        """Corpus index of each item ID; -1 for an item outside the corpus."""
        return self.index.values(ids)


@lru_cache(maxsize=1)
def corpus_index(scratch: Scratch, path: str) -> CorpusIndex:
    """The corpus that a step wrote into its scratch; read once in each process.

    Args:
        scratch: Scratch folder of the step.
        path: Scratch file with `item_id`, `id_rank` and `train_count` in the corpus's order.
    """
    frame = read_part_frame(scratch.lake(), [path], 0)
    ids = frame["item_id"]
    numbers = np.arange(frame.height, dtype=np.int32)
    return CorpusIndex(
        index=HashIndex(ids, numbers),
        id_rank=frame["id_rank"].to_numpy().astype(np.int32),
        train_count=frame["train_count"].to_numpy().astype(np.int64),
    )


@dataclass(frozen=True)
class TrainEvents:
    """A part's train events, ordered by user, time and item ID, and their users.

    Attributes:
        user_ids: The part's users, ascending; `[U]`.
        starts: Position of each user's first event; `[U]`.
        ends: Position after each user's last event; `[U]`.
        user_of: Number of each event's user; `[N]`.
        items: Corpus index of each event's item; `[N]`.
        timestamps: Microseconds; `[N]`.
        columns: `weight` and the columns that features read from the event; `[N]`.
        written: Whether each event becomes a row here; others only end histories; `[N]`.
    """

    user_ids: pl.Series
    starts: Int64s
    ends: Int64s
    user_of: Int64s
    items: Int32s
    timestamps: Int64s
    columns: pl.DataFrame
    written: npt.NDArray[np.bool_]

    @property
    def num_users(self) -> int:
        """Users of the part."""
        return len(self.user_ids)


def train_events(
    lake: Lake,
    paths: Sequence[str],
    part: int,
    corpus: CorpusIndex,
    context: Sequence[str],
    others: Sequence[pl.DataFrame] = (),
) -> TrainEvents:
    """Reads and orders a part's train events.

    Args:
        lake: The lake.
        paths: Scratch files of the split events.
        part: The part.
        corpus: The corpus; it holds the item of every train event.
        context: Columns that features read from the event.
        others: Events that become rows elsewhere, and are part of histories here.
    """
    own = read_events(lake, paths, part)
    events = pl.concat([own, *others], how="vertical_relaxed") if others else own
    user_ids, numbers = numbered(events["user_id"])
    users = numbers.astype(np.int64)
    items = corpus.items(events["item_id"])
    assert not items.size or items.min() >= 0
    timestamps = events["timestamp"].to_numpy()
    # The columns behind the item ID only order events that are the same event twice.
    last = events.select(
        pl.Series("id_rank", corpus.id_rank[items]), "weight", *map(pl.col, context)
    )
    order = order_of(users, timestamps, last)
    counts = np.bincount(users, minlength=len(user_ids)).astype(np.int64)
    ends = np.cumsum(counts)
    return TrainEvents(
        user_ids=user_ids,
        starts=ends - counts,
        ends=ends,
        user_of=users[order],
        items=items[order],
        timestamps=timestamps[order],
        columns=last.drop("id_rank")[order],
        written=order < own.height,
    )


def order_of(users: Int64s, timestamps: Int64s, last: pl.DataFrame) -> Int64s:
    """Order of events by user, then time, then the columns of `last` (nulls behind).

    Args:
        users: Number of each event's user, not negative; `[N]`.
        timestamps: Time of each event; `[N]`.
        last: What orders events of one user at one instant; `[N]`.
    """
    if not users.size:
        return np.zeros(0, dtype=np.int64)
    since = timestamps - timestamps.min()
    bits = int(since.max()).bit_length()
    if int(users.max()).bit_length() + bits <= 63:
        order = np.argsort((users << bits) | since)
    else:
        order = np.lexsort((since, users))
    by_user, by_time = users[order], timestamps[order]
    same = (by_user[1:] == by_user[:-1]) & (by_time[1:] == by_time[:-1])
    if not same.any():
        return order
    tied = np.append(same, False) | np.append(False, same)
    places = np.flatnonzero(tied)
    instant = np.append(0, np.cumsum(~same))[places]
    rows = order[places]
    ties = last[rows].with_columns(pl.Series("__instant", instant), pl.Series("__row", rows))
    by = ["__instant", *last.columns]
    order[places] = ties.sort(by, nulls_last=True)["__row"].to_numpy()
    return order
