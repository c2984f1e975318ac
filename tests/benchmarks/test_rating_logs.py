"""The protocols of the public data sets: sizes that their descriptions give, rows in their role."""

from datetime import datetime

import polars as pl
import pytest

from benchmarks import rating_logs


@pytest.fixture(autouse=True)
def _needs_data():
    try:
        rating_logs.data_folder()
    except SystemExit as missing:
        pytest.skip(str(missing))


def test_gowalla_is_the_published_split():
    log = rating_logs.gowalla()
    sizes = dict(log.events.group_by("split").len().iter_rows())
    assert sizes == {"train": 810_128, "test": 217_242}
    assert log.events["user_id"].n_unique() == 29_858
    assert log.events["item_id"].n_unique() == 40_981


def test_a_held_out_part_never_reads_the_test_rows():
    log = rating_logs.gowalla()
    held = log.held_out(0.1, 7)
    train = log.events.filter(pl.col("split") == "train").drop("split")
    assert held.events.drop("split").equals(train)
    assert held.events.filter(pl.col("split") == "test").height == pytest.approx(81_013, rel=0.01)


def to_the_end(events: pl.DataFrame) -> datetime:
    return max(events["timestamp"].to_list())


def from_the_start(events: pl.DataFrame) -> datetime:
    return min(events["timestamp"].to_list())


def test_movietweetings_is_cut_in_time():
    log = rating_logs.movietweetings()
    train, test = (log.events.filter(pl.col("split") == name) for name in ("train", "test"))
    assert (train.height, test.height) == (80_000, 10_000)
    assert to_the_end(train) < from_the_start(test)
    held = log.held_out(0.1, 0).events
    held_train, held_test = (held.filter(pl.col("split") == name) for name in ("train", "test"))
    # As far apart as the train and the test rows are, in rows.
    assert (held_train.height, held_test.height) == (64_000, 8_000)
    assert to_the_end(held_train) < from_the_start(held_test)
    assert to_the_end(held_test) == to_the_end(train)
