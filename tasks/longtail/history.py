"""Histories: a user's last items strictly before an event, or the user's other items.

Events are ordered by user, time and item ID. Events of the same user at the same instant do not
see each other, so a history never depends on how the log happened to order them.

Without times, a history is drawn from the user's other items. They stand on a ring in an order
that the seed decides, and a history is what follows the event's own item on it, up to the item
itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.longtail.id_hash import hash_ids
from tasks.longtail.lists import Int32s, Int64s, ListColumn, runs


def histories(users: Int64s, timestamps: Int64s, items: Int32s, length: int) -> ListColumn:
    """History of each event, oldest item first.

    Args:
        users: User of each event, ascending; `[N]`.
        timestamps: Time of each event, ascending within a user; `[N]`.
        items: Corpus index of each event's item; `[N]`.
        length: Longest history.
    """
    user_starts, user_of = runs(users)
    # An instant is a run of equal (user, time): its events have the same history, which ends
    # where the instant starts.
    changes = np.ones(users.size, dtype=bool)
    changes[1:] = (users[1:] != users[:-1]) | (timestamps[1:] != timestamps[:-1])
    instant_starts = np.flatnonzero(changes).astype(np.int64)
    ends = instant_starts[np.cumsum(changes) - 1] if users.size else instant_starts
    lengths = np.minimum(ends - user_starts[user_of], length)
    return ListColumn(ends - lengths, lengths, items)


def final_histories(starts: Int64s, ends: Int64s, items: Int32s, length: int) -> ListColumn:
    """Last items of each user after all of the user's events.

    Args:
        starts: Position of each user's first event; `[U]`.
        ends: Position after each user's last event; `[U]`.
        items: Corpus index of each event's item, in order; `[N]`.
        length: Longest history.
    """
    lengths = np.minimum(ends - starts, length)
    return ListColumn(ends - lengths, lengths, items)


class OtherItems:
    """Histories of data without times: the user's other items.

    Args:
        user_ids: The users; `[U]`.
        items: Distinct items of each user, ascending.
        seed: Seed of the order on the rings, which differs from user to user.
    """

    def __init__(self, user_ids: pl.Series, items: ListColumn, seed: int) -> None:
        users = np.repeat(np.arange(len(items)), items.lengths)
        values = items.flat()
        pairs = (users << 32) | values
        # Hashed together: two hashes combined by bits would leave neighbours neighbours.
        of_user = hash_ids(user_ids, seed).to_numpy()[users]
        of_pair = hash_ids(pl.Series(of_user + values.astype(np.uint64)), seed).to_numpy()
        order = np.lexsort((of_pair, users))
        self._pairs = pairs
        self._place = np.empty(pairs.size, dtype=np.int64)
        """Place of each pair of user and item, ascending, among all users' rings."""
        self._place[order] = np.arange(pairs.size)
        self._starts = np.cumsum(items.lengths) - items.lengths
        self._sizes = items.lengths
        # Each ring lies there twice, so that a walk around it is a slice.
        ring = values[order]
        self._twice = np.empty(2 * ring.size, dtype=np.int32)
        first = np.arange(ring.size) + self._starts[users]
        self._twice[first] = ring
        self._twice[first + self._sizes[users]] = ring

    def histories(self, users: Int64s, items: Int32s, length: int) -> ListColumn:
        """Up to `length` other items for each event.

        Args:
            users: User of each event; `[N]`.
            items: Corpus index of each event's item, which is among the user's; `[N]`.
            length: Longest history.
        """
        pair = np.searchsorted(self._pairs, (users << 32) | items)
        after = self._place[pair] + self._starts[users] + 1
        return ListColumn(after, np.minimum(self._sizes[users] - 1, length), self._twice)

    def final_histories(self, length: int) -> ListColumn:
        """Up to `length` of each user's items."""
        return ListColumn(2 * self._starts, np.minimum(self._sizes, length), self._twice)


def distinct_items(users: Int64s, items: Int32s, num_users: int) -> ListColumn:
    """Distinct items of each user, ascending.

    Args:
        users: User of each event, in `[0, num_users)`; `[N]`.
        items: Corpus index of each event's item; `[N]`.
        num_users: Number of lists in the result.
    """
    # Sorted by hand: `np.unique` hashes first, which takes many times longer.
    pairs = np.sort((users << 32) | items)
    if pairs.size:
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])]
    lengths = np.bincount(pairs >> 32, minlength=num_users).astype(np.int64)
    return ListColumn.of_lengths(lengths, _low_half(pairs))


def _low_half(pairs: npt.NDArray[np.int64]) -> Int32s:
    return (pairs & 0xFFFFFFFF).astype(np.int32)
