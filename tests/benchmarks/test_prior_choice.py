"""Popularity weighted by age, from which the prior of a data set is chosen: by hand, and without a
look at the test rows."""

from datetime import UTC, datetime

import polars as pl
import pytest

from benchmarks.prior_choice import recent_counts
from benchmarks.rating_logs import RatingLog


def log_of(rows):
    schema = pl.Schema(
        {"item_id": pl.String(), "timestamp": pl.Datetime("us", "UTC"), "split": pl.String()}
    )
    return RatingLog(pl.DataFrame(rows, schema=schema, orient="row"), None, timed=True)


def on(day, hour=0):
    return datetime(2026, 3, day, hour, tzinfo=UTC)


LOG = log_of(
    [
        ("a", on(1), "train"),
        ("a", on(4, 12), "train"),
        ("b", on(3), "train"),
        ("b", on(9), "test"),
        ("c", on(9), "test"),
    ]
)
IDS = pl.Series(["c", "b", "a"])


def test_ages_are_measured_from_the_end_of_the_last_train_day():
    # That is midnight of day 5: 4 and half a day for a, 2 for b.
    found = recent_counts(LOG, 2.0, IDS)
    assert found == pytest.approx([0.0, 0.5**1, 0.5**2 + 0.5**0.25])


def test_without_a_half_life_it_is_a_count():
    assert recent_counts(LOG, None, IDS).tolist() == [0.0, 1.0, 2.0]
