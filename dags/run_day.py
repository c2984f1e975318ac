"""The day that a DAG run is about, the same for scheduled, manual and backfill runs."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

KEY_FORMAT = "%Y-%m-%d"
"""Format of the partition key: the day itself."""


def resolve_day(asked: str | None, partition_key: str | None, run_after: datetime) -> date:
    """The day that a run tests on.

    A scheduled run and each run of a backfill carry their day as partition key. A run that was
    triggered by hand carries none: it takes the day of the form, else the last complete day.
    That day counts from the time the run was asked for, so a retry after midnight keeps it.

    Args:
        asked: Day given in the trigger form, `YYYY-MM-DD`.
        partition_key: Partition key of the DAG run.
        run_after: Time from which the run was allowed to start, with time zone.

    Raises:
        ValueError: A value is not a day, or form and partition disagree.
    """
    if asked and partition_key and _day(asked) != _day(partition_key):
        raise ValueError(
            f"the form asks for {asked}, but this run is the partition {partition_key}: "
            "leave the day empty in a backfill"
        )
    if given := asked or partition_key:
        return _day(given)
    return run_after.astimezone(UTC).date() - timedelta(days=1)


def _day(text: str) -> date:
    try:
        return datetime.strptime(text, KEY_FORMAT).date()
    except ValueError as error:
        raise ValueError(f"'{text}' is not a day: write it as 2026-01-31") from error
