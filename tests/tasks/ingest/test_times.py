"""Protects the reading of times: an hour or a unit off puts events into the wrong day.

Python's own `datetime` is the reference.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import DataError
from tasks.ingest.times import TimeParser

moments = st.datetimes(datetime(1974, 1, 1), datetime(2090, 1, 1)).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)
zones = st.integers(-12 * 4, 14 * 4).map(lambda quarter: timezone(timedelta(minutes=15 * quarter)))


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def parse(values: list[Any], time_format: str = "auto", zone: str = "UTC") -> list[int | None]:
    return TimeParser(time_format, zone).parse(pl.Series(values), "here").to_list()


@given(st.lists(st.tuples(moments, zones), min_size=1, max_size=20))
def test_iso_texts_agree_with_python(pairs):
    zoned = [moment.replace(tzinfo=zone) for moment, zone in pairs]
    naive = [moment for moment, _ in pairs]
    wanted = [micros(moment) for moment in zoned]
    assert parse([moment.isoformat() for moment in zoned]) == wanted
    assert parse([str(moment) for moment in zoned]) == wanted
    assert parse([str(moment) for moment in naive]) == [
        micros(m.replace(tzinfo=UTC)) for m in naive
    ]


@given(st.lists(moments, min_size=1, max_size=20), st.sampled_from(["s", "ms", "us", "ns"]))
def test_epochs_are_told_apart_by_magnitude(list_of_moments, unit):
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    wanted = [micros(moment.replace(tzinfo=UTC)) for moment in list_of_moments]
    if unit == "s":
        wanted = [value // 1_000_000 * 1_000_000 for value in wanted]
    numbers = [value * 1000 // 10 ** (9 - digits) for value in wanted]
    assert parse(numbers) == wanted
    assert parse([str(number) for number in numbers]) == wanted


def test_mixed_spellings_in_one_column():
    values = ["2026-01-01", "2026-01-01 08:26", "2026-01-01T08:26:30.5Z", "x", None, "2026-13-01"]
    day = micros(datetime(2026, 1, 1, tzinfo=UTC))
    half = 30 * 60_000_000  # 08:26:30.5 is 30,390.5 s after midnight
    assert half == 1_800_000_000
    assert parse(values) == [day, day + 30_360_000_000, day + 30_390_500_000, None, None, None]


def test_a_pattern_and_a_time_zone():
    # London is at UTC+1 in July and at UTC in January.
    found = parse(["1/7/2010 8:26", "13/01/2010 18:00"], "%d/%m/%Y %H:%M", "Europe/London")
    london = ZoneInfo("Europe/London")
    assert found == [
        micros(datetime(2010, 7, 1, 8, 26, tzinfo=london)),
        micros(datetime(2010, 1, 13, 18, 0, tzinfo=london)),
    ]
    assert parse(["20101201"], "%Y%m%d") == [micros(datetime(2010, 12, 1, tzinfo=UTC))]


def test_an_hour_that_the_clock_skips_has_no_time():
    # On 2026-03-29 Berlin's clocks go from 02:00 to 03:00.
    found = parse(["2026-03-29 02:30:00", "2026-03-29 03:30:00"], zone="Europe/Berlin")
    assert found == [None, micros(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))]


def test_the_rule_is_decided_once_and_stated():
    parser = TimeParser("auto", "UTC")
    parser.parse(pl.Series([1_767_225_600_000]), "here")
    assert parser.rule == "numbers, taken as epoch ms"
    # A batch of small numbers later on is not suddenly taken for seconds.
    assert parser.parse(pl.Series([1_000]), "here").to_list() == [1_000_000]


@pytest.mark.parametrize("values", [[20101201], ["20101201"], [5.0], ["12/1/2010 8:26"], [True]])
def test_what_cannot_be_told_is_asked_for(values):
    with pytest.raises(DataError):
        parse(values)


def test_floats_and_datetimes_of_parquet_files():
    assert parse([1_767_225_600.25, float("nan"), None]) == [1_767_225_600_250_000, None, None]
    moment = datetime(2026, 1, 1, 12, 0, 0, 123_000)
    assert parse([moment]) == [micros(moment.replace(tzinfo=UTC))]
    assert parse([moment.date()]) == [micros(datetime(2026, 1, 1, tzinfo=UTC))]
