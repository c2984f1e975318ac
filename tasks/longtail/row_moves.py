"""From yesterday's rows to today's: what each row of a table starts from.

An owner that stays takes its row along. A promoted ID starts from what stood for it: the sum of
its bucket rows, with their mean optimizer state. A demoted ID's vector is averaged back into its
buckets, weighed by its count against the events that a bucket had on average. A freed row keeps
nothing, and a reused one belongs to its new owner alone. With another number of buckets, a bucket
starts from the mean of the buckets that its IDs were in: those whose number is the same modulo the
greatest common divisor of both sizes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from tasks.config import VocabularySettings
from tasks.longtail.id_hash import tail_buckets
from tasks.longtail.vocabulary_table import Vocabulary


@dataclass(frozen=True)
class MovedRows:
    """What became of the rows of a table.

    Attributes:
        kept: IDs that own a row before and after.
        promoted: IDs that gained a row and start from their buckets.
        demoted: IDs that lost their row; their vectors went into their buckets.
        reset: Rows of the new table that nobody owns; they start as in a new model.
    """

    kept: int
    promoted: int
    demoted: int
    reset: int

    def numbers(self) -> dict[str, int]:
        """The numbers by name."""
        return asdict(self)


def row_moves(old: Vocabulary, new: Vocabulary, bucket_events: float) -> tuple[pa.Table, MovedRows]:
    """The terms of every row that has a past, as `models/row_moves.py` reads them.

    Args:
        old: Vocabulary of the earlier model.
        new: Vocabulary of the new one, with the same hash, seed and number of hashes.
        bucket_events: Events that a bucket of the old vocabulary stood for, on average.

    Returns:
        `new_row`, `old_row`, `weight`, `state`, ordered by row; and what happened.
    """
    ids = new.table.schema["id"] if new.table.height else old.table.schema["id"]
    before = old.table.select(pl.col("id").cast(ids), pl.col("row").alias("old_row"), "count")
    after = new.table.select(pl.col("id").cast(ids), pl.col("row").alias("new_row"))
    kept = after.join(before, on="id")
    promoted = after.join(before, on="id", how="anti")
    demoted = before.join(after, on="id", how="anti")
    parts = [
        _terms(kept["new_row"], kept["old_row"], 1.0, 1.0),
        _from_buckets(promoted, old.policy),
        _buckets(demoted, old.policy, new.policy, bucket_events),
    ]
    terms = (
        pl.concat(parts)
        .group_by("new_row", "old_row")
        .agg(pl.col("weight").sum(), pl.col("state").sum())
        .sort("new_row", "old_row")
    )
    table = pa.table(
        {
            "new_row": pa.array(terms["new_row"].to_numpy().astype(np.int32)),
            "old_row": pa.array(terms["old_row"].to_numpy().astype(np.int32)),
            "weight": pa.array(terms["weight"].to_numpy().astype(np.float32)),
            "state": pa.array(terms["state"].to_numpy().astype(np.float32)),
        }
    )
    reset = new.rows - new.first_own_row - new.table.height
    return table, MovedRows(kept.height, promoted.height, demoted.height, reset)


def _terms(
    new_row: pl.Series | npt.NDArray[np.int64],
    old_row: pl.Series | npt.NDArray[np.int64],
    weight: float | npt.NDArray[np.float64],
    state: float | npt.NDArray[np.float64],
) -> pl.DataFrame:
    size = len(new_row)
    return pl.DataFrame(
        {
            "new_row": np.asarray(new_row, dtype=np.int64),
            "old_row": np.asarray(old_row, dtype=np.int64),
            "weight": np.broadcast_to(np.asarray(weight, dtype=np.float64), size),
            "state": np.broadcast_to(np.asarray(state, dtype=np.float64), size),
        }
    )


def _bucket_rows(ids: pl.Series, policy: VocabularySettings) -> npt.NDArray[np.int64]:
    """Bucket rows of IDs, `[hashes, N]`."""
    found = tail_buckets(ids, buckets=policy.tail_buckets, hashes=policy.hashes, seed=policy.seed)
    return np.stack([rows.to_numpy().astype(np.int64) for rows in found])


def _from_buckets(promoted: pl.DataFrame, policy: VocabularySettings) -> pl.DataFrame:
    rows = promoted["new_row"].to_numpy()
    buckets = _bucket_rows(promoted["id"], policy)
    return pl.concat([_terms(rows, of_hash, 1.0, 1.0 / policy.hashes) for of_hash in buckets])


def _buckets(
    demoted: pl.DataFrame, old: VocabularySettings, new: VocabularySettings, events: float
) -> pl.DataFrame:
    """Every bucket row: the buckets that it was, drawn towards the IDs that joined it.

    A demoted ID with vector `v` will be the sum of its bucket rows, so each of them moves by its
    part of `v` minus that sum.
    """
    size = new.tail_buckets
    buckets = _bucket_rows(demoted["id"], new) if demoted.height else np.zeros((1, 0), np.int64)
    count = demoted["count"].to_numpy().astype(np.float64)
    # An ID that has left the window is worth one event.
    count = np.maximum(count, 1.0)
    joined = np.zeros(size + 1)
    for of_hash in buckets:
        np.add.at(joined, of_hash, count)
    total = joined + max(events, 0.0)
    share = count / total[buckets]
    stays = np.divide(total - joined, total, out=np.ones(size + 1), where=joined > 0)
    every = np.arange(1, size + 1)
    parts = [_past_of(every, every, np.ones(size), stays[1:], old, new)]
    rows = demoted["old_row"].to_numpy()
    hashes = len(buckets)
    for number, of_hash in enumerate(buckets):
        parts.append(_terms(of_hash, rows, share[number] / hashes, share[number]))
        for others in buckets:
            nothing = np.zeros(demoted.height)
            parts.append(_past_of(of_hash, others, -share[number] / hashes, nothing, old, new))
    return pl.concat(parts)


def _past_of(
    target: npt.NDArray[np.int64],
    bucket: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64],
    state: npt.NDArray[np.float64],
    old: VocabularySettings,
    new: VocabularySettings,
) -> pl.DataFrame:
    """Adds multiples of new buckets, as they are before anybody joins, to target rows."""
    pairs = (
        _terms(target, bucket, weight, state)
        .group_by("new_row", "old_row")
        .agg(pl.col("weight").sum(), pl.col("state").sum())
    )
    shared = math.gcd(old.tail_buckets, new.tail_buckets)
    copies = old.tail_buckets // shared
    steps = np.arange(copies) * shared + 1
    first = (pairs["old_row"].to_numpy() - 1) % shared
    return _terms(
        np.repeat(pairs["new_row"].to_numpy(), copies),
        (first[:, None] + steps[None, :]).reshape(-1),
        np.repeat(pairs["weight"].to_numpy() / copies, copies),
        np.repeat(pairs["state"].to_numpy() / copies, copies),
    )
