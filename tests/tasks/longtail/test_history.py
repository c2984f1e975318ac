"""Histories and seen sets on random logs, against a loop over each user's events."""

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tasks.longtail.history import OtherItems, distinct_items, final_histories, histories
from tasks.longtail.lists import runs

log = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 5)), max_size=40)


@given(log, st.integers(0, 5))
def test_histories_hold_the_last_items_strictly_before(rows, length):
    rows = sorted(rows)
    users = np.array([row[0] for row in rows], dtype=np.int64)
    times = np.array([row[1] for row in rows], dtype=np.int64)
    items = np.array([row[2] for row in rows], dtype=np.int32)
    found = histories(users, times, items, length).to_arrow().to_pylist()
    for row, past in zip(rows, found, strict=True):
        earlier = [item for user, time, item in rows if user == row[0] and time < row[1]]
        assert past == earlier[max(0, len(earlier) - length) :]


@given(log, st.integers(0, 5))
def test_final_histories_and_seen_items(rows, length):
    rows = sorted(rows)
    users = np.array([row[0] for row in rows], dtype=np.int64)
    items = np.array([row[2] for row in rows], dtype=np.int32)
    starts, _ = runs(users)
    ends = np.append(starts[1:], len(rows)) if rows else starts
    final = final_histories(starts, ends, items, length).to_arrow().to_pylist()
    names = sorted(set(users.tolist()))
    for user, last in zip(names, final, strict=True):
        own = [row[2] for row in rows if row[0] == user]
        assert last == own[max(0, len(own) - length) :]
    seen = distinct_items(users, items, 5).to_arrow().to_pylist()
    assert seen == [sorted({row[2] for row in rows if row[0] == user}) for user in range(5)]


pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=60)


@given(pairs, st.integers(0, 12), st.integers(0, 3))
def test_other_items_are_the_users_and_never_the_events_own(rows, length, seed):
    names = sorted({user for user, _ in rows})
    number = {name: n for n, name in enumerate(names)}
    users = np.array([number[user] for user, _ in rows], dtype=np.int64)
    items = np.array([item for _, item in rows], dtype=np.int32)
    ids = pl.Series(names)
    others = OtherItems(ids, distinct_items(users, items, len(names)), seed)
    found = others.histories(users, items, length).to_arrow().to_pylist()
    for (user, item), history in zip(rows, found, strict=True):
        own = {other for name, other in rows if name == user}
        assert set(history) <= own - {item}
        assert len(history) == len(set(history)) == min(length, len(own) - 1)
    final = others.final_histories(length).to_arrow().to_pylist()
    for user, history in zip(names, final, strict=True):
        own = {other for name, other in rows if name == user}
        assert set(history) <= own
        assert len(history) == len(set(history)) == min(length, len(own))


def test_short_histories_of_other_items_favour_none():
    # 12 items, histories of 4: each pair of items meets in 4 of 11 users' histories.
    users = np.repeat(np.arange(3000), 12)
    items = np.tile(np.arange(12, dtype=np.int32), 3000)
    ids = pl.Series(np.arange(3000))
    others = OtherItems(ids, distinct_items(users, items, 3000), 5)
    found = np.array(others.histories(users, items, 4).to_arrow().to_pylist())
    met = np.zeros((12, 12))
    np.add.at(met, (np.repeat(items, 4), found.ravel()), 1)
    share = met[~np.eye(12, dtype=bool)] / 3000
    # Five standard deviations of a share of 4 / 11 among 3000 users.
    assert abs(share - 4 / 11).max() < 5 * np.sqrt(4 / 11 * 7 / 11 / 3000)
