"""Users with so many events that they do not fit one part: their events are cut by time too.

All events of a user lie in the part that the hash of the user says, its home. A hot user's train
events do not: they lie in slices, extra parts that hold the events of one user between two
instants, so that no worker holds, or waits for, more than a slice. A history that reaches back
over the start of a slice is read from the last events of the slices before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import polars as pl

from tasks.lake import Lake
from tasks.longtail.cluster import Runner
from tasks.longtail.columns import scan
from tasks.longtail.exchange import Scratch, read_part_frame
from tasks.longtail.id_hash import partition_of

DAY_US = 86_400_000_000


@dataclass(frozen=True)
class HotUser:
    """A user whose train events lie in slices.

    Attributes:
        user_id: The user, string or integer.
        home: Part of its users and test rows.
        first_slice: Number of its first slice among all parts and slices.
        cuts: Instants between its slices, microseconds, ascending; `[slices - 1]`.
    """

    user_id: Any
    home: int
    first_slice: int
    cuts: tuple[int, ...]

    @property
    def slices(self) -> range:
        """Numbers of its slices, in the order of time."""
        return range(self.first_slice, self.first_slice + len(self.cuts) + 1)


@dataclass(frozen=True)
class _DayTask:
    url: str
    path: str
    least: int


def find_hot_users(
    runner: Runner,
    lake: Lake,
    counts: Sequence[tuple[date, Sequence[str]]],
    parts: int,
    rows_per_slice: int,
) -> tuple[HotUser, ...]:
    """The users with more than about `rows_per_slice` train events, ordered by ID.

    It depends on the counts alone. A user may be missed that has up to half as many again.

    Args:
        runner: Where the counts are read.
        lake: The lake.
        counts: Train days and the files of the users' counts on each, oldest first.
        parts: Parts of the users, a power of two.
        rows_per_slice: About how many rows a slice may have.
    """
    least = -(-rows_per_slice // len(counts))
    tasks = [_DayTask(lake.url, path, least) for _, paths in counts for path in paths]
    found = pl.concat(runner.map("look for hot users", _busy_users, tasks), how="vertical_relaxed")
    busy = (
        found.group_by("id")
        .agg(pl.col("count").sum(), pl.col("count").max().alias("of_a_day"))
        .filter(pl.col("count") > rows_per_slice // 2)
        .sort("id")
    )
    if busy.is_empty():
        return ()
    days = [day for day, _ in counts]
    homes = partition_of(busy["id"], parts).to_list()
    users = []
    first = parts
    for home, (user_id, _, of_a_day) in zip(homes, busy.iter_rows(), strict=True):
        user = HotUser(user_id, home, first, _cuts(days, -(-of_a_day // rows_per_slice)))
        users.append(user)
        first = user.slices.stop
    return tuple(users)


def _busy_users(task: _DayTask) -> pl.DataFrame:
    """Users with at least so many events in one file of counts."""
    counts = scan(Lake(task.url), task.path, ["id", "count"])
    return counts.filter(pl.col("count") >= task.least).collect()


def _cuts(days: Sequence[date], slices_a_day: int) -> tuple[int, ...]:
    """Starts of equal stretches of the days, without the first."""
    starts = [
        int(datetime.combine(day, datetime.min.time(), UTC).timestamp()) * 1_000_000 for day in days
    ]
    return tuple(
        start + DAY_US * n // slices_a_day for start in starts for n in range(slices_a_day)
    )[1:]


def place_events(frame: pl.DataFrame, parts: int, hot: Sequence[HotUser]) -> pl.Series:
    """Part or slice of each event, UInt32 `[N]`.

    Args:
        frame: `user_id` and `timestamp`, without nulls.
        parts: Parts of the users.
        hot: The hot users.
    """
    placed = partition_of(frame["user_id"], parts)
    if not hot or frame.is_empty():
        return placed
    numbers = placed.to_numpy().copy()
    for user in hot:
        own = (frame["user_id"] == user.user_id).arg_true().to_numpy()
        times = frame["timestamp"].gather(own).to_numpy()
        numbers[own] = user.first_slice + np.searchsorted(np.array(user.cuts), times, side="right")
    return pl.Series("part", numbers)


def stats_file(scratch: Scratch, part: int) -> str:
    """Scratch file of the item statistics of a part or slice."""
    return scratch.file(f"item-stats-{part:05d}")


def tail_file(scratch: Scratch, part: int) -> str:
    """Scratch file of a slice's last events."""
    return scratch.file(f"tail-{part:05d}")


def item_counts(scratch: Scratch, user: HotUser) -> pl.DataFrame:
    """The user's items as `events.item_stats` counts them; `train_users` is 1."""
    lake = scratch.lake()
    of_slices = [read_part_frame(lake, [stats_file(scratch, n)], 0) for n in user.slices]
    counts = pl.concat(of_slices, how="vertical_relaxed").group_by("item_id")
    return counts.agg(pl.exclude("train_users").sum(), train_users=pl.lit(1, pl.Int64))


def events_before(scratch: Scratch, user: HotUser, part: int, wanted: int) -> pl.DataFrame | None:
    """The user's last events before a slice, in order.

    Args:
        scratch: Scratch folder of the step.
        user: The user.
        part: Number of the slice; the end of the slices for the last events of all.
        wanted: At most how many.
    """
    lake = scratch.lake()
    found: list[pl.DataFrame] = []
    for earlier in reversed(range(user.first_slice, part)):
        if sum(frame.height for frame in found) >= wanted:
            break
        found.insert(0, read_part_frame(lake, [tail_file(scratch, earlier)], 0))
    return pl.concat(found, how="vertical_relaxed").tail(wanted) if found else None
