"""Merging daily counts into one window, with decay, exactly.

A count of n days ago weighs `decay ** n`. Weights are rounded to multiples of 2**-20 and counts
are summed as integers of that unit, so the sum is the same in any order, on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.config import VocabularySettings
from tasks.errors import DataError
from tasks.lake import Lake, Published
from tasks.longtail.id_hash import integers_at, integers_of, place_integers
from tasks.longtail.sorted_runs import starts_of_runs

UNIT = 1 << 20
"""Units of a count of one."""


@dataclass(frozen=True)
class WeightedDay:
    """A day's counts and what one occurrence of that day weighs."""

    counts: Published
    day: date
    units: int
    """Negative for a day that is taken out of a window."""

    @property
    def parts(self) -> int:
        """Parts that the counts are split into."""
        return int(self.counts.manifest.meta["parts"])


def weigh(counts: Published, day: date, *, today: date, decay: float) -> WeightedDay:
    """Weighs a day's counts for the vocabulary of `today`; the day before it weighs 1."""
    age = (today - day).days - 1
    return WeightedDay(counts, day, round(decay**age * UNIT))


def empty_window(dtype: pl.DataType | None = None) -> pl.DataFrame:
    """A window without any occurrence."""
    return pl.DataFrame(
        schema={"id": dtype or pl.String(), "units": pl.Int64(), "last_seen": pl.Date()}
    )


def check_types(lake: Lake, days: Sequence[WeightedDay]) -> str:
    """Checks that all days hold IDs of one type; a day without any ID fits every other one.

    Returns:
        The Polars type; text when no day holds any ID.

    Raises:
        DataError: They do not.
    """
    days = [day for day in days if day.counts.manifest.meta["events"]]
    types = {str(day.counts.manifest.meta["id_type"]): day for day in days}
    if len(types) > 1:
        named = ", ".join(f"{kind} on {day.day}" for kind, day in sorted(types.items()))
        raise DataError(
            f"the IDs changed their type: {named}",
            where=f"{lake.url}/{days[0].counts.path}",
            fix="deliver all days with one type",
        )
    return next(iter(types), str(pl.String()))


def combine(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Adds windows up.

    Args:
        frames: `id`, `units` (Int64, may be negative), `last_seen` (Date); IDs may repeat.
            Integers are merged fastest when each frame is ordered by place.

    Returns:
        The same columns, one row for each ID whose units are not 0, with the newest `last_seen`;
        integers are ordered by place.
    """
    summed = add_up(frames)
    return summed.filter(pl.col("units") != 0)


def add_up(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Like `combine`, with the IDs whose units are 0: they too have a newest `last_seen`."""
    together = pl.concat([frame for frame in frames if frame.height] or frames[:1])
    if not together.schema["id"].is_integer():
        return together.group_by("id", maintain_order=True).agg(
            pl.col("units").sum(), pl.col("last_seen").max()
        )
    if together.is_empty():
        return together
    places = place_integers(integers_of(together["id"]))
    order = np.argsort(places, kind="stable")
    places = places[order]
    starts = starts_of_runs(places)
    units = np.add.reduceat(together["units"].to_numpy()[order], starts)
    seen = together["last_seen"].to_physical().to_numpy()[order]
    ids = integers_at(places[starts])
    return _frame(ids, units, np.maximum.reduceat(seen, starts), together.schema["id"])


def _frame(
    ids: npt.NDArray[Any], units: npt.NDArray[np.int64], seen: npt.NDArray[np.int32], dtype: Any
) -> pl.DataFrame:
    """A window of integers; `ids` are 64 bits each, signed as `dtype` says."""
    bits = ids.view(np.int64) if dtype == pl.Int64 else ids.view(np.uint64)
    return pl.DataFrame(
        {"id": bits, "units": units, "last_seen": pl.Series(seen, dtype=pl.Int32).cast(pl.Date)}
    )


def carry_text(
    before: pl.DataFrame, changes: pl.DataFrame
) -> tuple[pl.DataFrame, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Adds changes to a window of text, without sorting or hashing all of it anew.

    Args:
        before: What `combine` or `carry_text` made.
        changes: What `add_up` made.

    Returns:
        What `combine` gives, in another order; the units of each changed ID before and after.
    """
    added = changes.rename({"units": "more", "last_seen": "then"})
    joined = before.join(added, on="id", how="left", maintain_order="left")
    met = joined.filter(pl.col("more").is_not_null()).select("id", was="units")
    known = changes.join(met, on="id", how="left", maintain_order="left")["was"]
    old = known.fill_null(0).to_numpy()
    new = old + changes["units"].to_numpy()
    stay = joined.select(
        "id",
        pl.col("units") + pl.col("more").fill_null(0),
        pl.max_horizontal("last_seen", "then").alias("last_seen"),
    )
    fresh = changes.filter(known.is_null() & pl.Series(new != 0))
    return pl.concat([stay.filter(pl.col("units") != 0), fresh]), old, new


def is_recent(policy: VocabularySettings, today: date) -> pl.Expr:
    """Whether an ID of a window was seen recently enough to own a row."""
    if policy.ttl_days is None:
        return pl.lit(True)
    return (pl.lit(today) - pl.col("last_seen")).dt.total_days() - 1 < policy.ttl_days
