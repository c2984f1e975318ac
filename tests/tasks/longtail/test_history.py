"""Histories and seen sets on random logs, against a loop over each user's events."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.longtail.history import distinct_items, final_histories, histories
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
