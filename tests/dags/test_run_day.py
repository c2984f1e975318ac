"""Protects: scheduled, manual and backfill runs of one day are about the same day."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from dags.run_day import resolve_day

MIDNIGHT = datetime(2026, 3, 10, tzinfo=UTC)


def test_a_scheduled_run_takes_its_partition():
    assert resolve_day(None, "2026-03-09", MIDNIGHT) == date(2026, 3, 9)


def test_a_backfill_takes_its_partition_whenever_it_runs():
    assert resolve_day("", "2026-01-31", MIDNIGHT) == date(2026, 1, 31)


def test_a_manual_run_takes_the_form():
    assert resolve_day("2026-02-28", None, MIDNIGHT) == date(2026, 2, 28)


@pytest.mark.parametrize(
    ("asked_for_at", "day"),
    [
        (datetime(2026, 3, 10, 0, 0, tzinfo=UTC), date(2026, 3, 9)),
        (datetime(2026, 3, 10, 23, 59, tzinfo=UTC), date(2026, 3, 9)),
        # 01:30 in Berlin is still the evening before in UTC, in winter and in summer.
        (datetime(2026, 3, 10, 0, 30, tzinfo=ZoneInfo("Europe/Berlin")), date(2026, 3, 8)),
        (datetime(2026, 7, 10, 1, 30, tzinfo=ZoneInfo("Europe/Berlin")), date(2026, 7, 8)),
        # The two days on which the clocks change have one midnight in UTC like any other.
        (datetime(2026, 3, 29, 2, 30, tzinfo=UTC), date(2026, 3, 28)),
        (datetime(2026, 10, 25, 1, 30, tzinfo=UTC), date(2026, 10, 24)),
    ],
)
def test_a_manual_run_without_a_day_takes_yesterday_in_utc(asked_for_at: datetime, day: date):
    assert resolve_day(None, None, asked_for_at) == day


def test_form_and_partition_may_agree():
    assert resolve_day("2026-03-09", "2026-03-09", MIDNIGHT) == date(2026, 3, 9)


def test_form_and_partition_that_disagree_are_refused():
    with pytest.raises(ValueError, match="2026-03-01, but this run is the partition 2026-03-09"):
        resolve_day("2026-03-01", "2026-03-09", MIDNIGHT)


@pytest.mark.parametrize("bad", ["yesterday", "2026-02-30", "09.03.2026"])
def test_what_is_not_a_day_is_refused(bad: str):
    with pytest.raises(ValueError, match="is not a day"):
        resolve_day(bad, None, MIDNIGHT)


def test_timetable_gives_schedule_and_backfill_the_same_partition():
    """The scheduled run after a day and a backfill of that day carry the same key."""
    from airflow.sdk.timezone import coerce_datetime
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import TimeRestriction

    from dags.daily_retrain import dag

    timetable = coerce_to_core_timetable(dag.timetable)
    for midnight in (
        MIDNIGHT,
        datetime(2026, 3, 29, tzinfo=UTC),
        datetime(2026, 10, 25, tzinfo=UTC),
    ):
        scheduled = timetable.next_dagrun_info_v2(
            last_dagrun_info=None,
            restriction=TimeRestriction(
                earliest=coerce_datetime(midnight), latest=None, catchup=True
            ),
        )
        assert scheduled is not None
        assert scheduled.run_after == midnight
        partition = scheduled.partition_date
        assert partition is not None
        backfilled = list(
            timetable.iter_partition_dagrun_infos(earliest=partition, latest=partition)
        )
        assert [info.partition_key for info in backfilled] == [scheduled.partition_key]
        by_hand = resolve_day(None, None, scheduled.run_after)
        assert scheduled.partition_key == by_hand.isoformat()
