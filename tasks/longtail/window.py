"""Merging daily counts into one window, with decay, exactly.

A count of n days ago weighs `decay ** n`. Weights are rounded to multiples of 2**-20 and counts
are summed as integers of that unit, so the sum is the same in any order, on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import polars as pl

from tasks.errors import DataError
from tasks.lake import Lake, Published
from tasks.longtail.columns import scan

UNIT = 1 << 20
"""Units of a count of one."""


@dataclass(frozen=True)
class WeightedDay:
    """A day's counts and what one occurrence of that day weighs."""

    counts: Published
    day: date
    units: int


def weigh(counts: Published, day: date, *, today: date, decay: float) -> WeightedDay:
    """Weighs a day's counts for the vocabulary of `today`; the day before it weighs 1."""
    age = (today - day).days - 1
    return WeightedDay(counts, day, round(decay**age * UNIT))


def empty_window(dtype: pl.DataType | None = None) -> pl.DataFrame:
    """A window without any occurrence."""
    return pl.DataFrame(
        schema={"id": dtype or pl.String(), "units": pl.Int64(), "last_seen": pl.Date()}
    )


def merge_window(lake: Lake, days: Sequence[WeightedDay]) -> pl.DataFrame:
    """Sums daily counts.

    Returns:
        Columns `id`, `units` (Int64, the decayed count in multiples of 2**-20) and `last_seen`
        (the newest day with an occurrence); the order of the rows means nothing.

    Raises:
        DataError: Days hold IDs of different types.
    """
    # A day without any ID fits every other one.
    days = [day for day in days if day.counts.manifest.rows]
    types = {str(day.counts.manifest.meta["id_type"]): day for day in days}
    if len(types) > 1:
        named = ", ".join(f"{kind} on {day.day}" for kind, day in sorted(types.items()))
        raise DataError(
            f"the IDs changed their type: {named}",
            where=f"{lake.url}/{days[0].counts.path}",
            fix="deliver all days with one type",
        )
    frames = [
        scan(lake, path, ["id", "count"]).select(
            "id",
            (pl.col("count") * day.units).alias("units"),
            pl.lit(day.day).alias("last_seen"),
        )
        for day in days
        for path in day.counts.files()
    ]
    if not frames:
        return empty_window()
    merged = pl.concat(frames).group_by("id").agg(pl.col("units").sum(), pl.col("last_seen").max())
    return merged.collect(engine="streaming")
