"""The order of train events against Python's sort, whatever ties and however wide the times."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.longtail.example_events import order_of

events = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 4),
        st.integers(0, 3),
        st.sampled_from([0.5, 1.0]),
        st.sampled_from([None, "a", "b"]),
    ),
    max_size=40,
)


@pytest.mark.parametrize("step", [1, 2**60])
def test_by_user_time_and_the_tie_rule(step):
    # A step of 2**60 leaves no room for the user in one 64-bit key.
    @given(events)
    def check(rows):
        users = np.array([row[0] for row in rows], dtype=np.int64)
        times = np.array([row[1] * step - 2 * step for row in rows], dtype=np.int64)
        last = pl.DataFrame(
            [row[2:] for row in rows],
            schema={"id_rank": pl.Int32, "weight": pl.Float32, "device": pl.String},
            orient="row",
        )
        found = [rows[n] for n in order_of(users, times, last).tolist()]
        assert found == sorted(rows, key=lambda row: (*row[:4], row[4] is None, row[4] or ""))

    check()
