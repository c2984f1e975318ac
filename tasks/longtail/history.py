"""Histories: a user's last items strictly before an event.

Events are ordered by user, time and item ID. Events of the same user at the same instant do not
see each other, so a history never depends on how the log happened to order them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
