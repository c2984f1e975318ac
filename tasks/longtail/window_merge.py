"""A table's window over all its parts: on the workers, carried on from day to day.

Merging thirty days anew each day would cost thirty times the day. Without decay, today's window
is yesterday's plus the day that entered minus the day that left, to the last bit; so windows are
kept (`window/<table>/`, a cache that is rebuilt from the counts when it is gone). What is kept
of a day holds its changes and points to what earlier days wrote (`window_layers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any

import numpy as np
import polars as pl

from tasks.config import VocabularySettings
from tasks.lake import Lake, Output, Published, partition_name
from tasks.longtail.cluster import Runner
from tasks.longtail.columns import from_arrow
from tasks.longtail.id_hash import parts_for
from tasks.longtail.seen_once import has_sketches
from tasks.longtail.window import UNIT, WeightedDay, check_types, empty_window
from tasks.longtail.window_layers import SLICES
from tasks.longtail.window_parts import (
    TEXT,
    KeptPart,
    PartResult,
    PartTask,
    files_of_part,
    kept_part,
    merge_window_part,
)
from tasks.longtail.window_sums import Histogram, Sums, add_histograms

ROWS_PER_PART = 1 << 22
"""Rows of daily counts for each part of a window; a task holds one part in memory."""
ROWS_TO_KEEP = 1 << 20
"""Rows of daily counts from which on a window is kept for the next day."""
_FORMAT = 2


@dataclass(frozen=True)
class WindowSummary:
    """What a table's window holds, without its tail.

    Attributes:
        candidates: `id`, `units`, `last_seen` of every ID that may own a row.
        sums: Sums over all IDs.
        eligible: Histogram of the IDs seen recently enough to own a row; of all IDs where nobody
            asked.
        only_changes: Whether the candidates are only those whose units changed since yesterday
            and were, or are, enough for a row; all others have what the vocabulary before says.
    """

    candidates: pl.DataFrame
    sums: Sums
    eligible: Histogram
    only_changes: bool = False


class _Absent(Exception):
    """The window is not kept."""


class WindowMerge:
    """Merges the windows of one table.

    Args:
        lake: The lake.
        runner: Where the merging runs.
        name: Name of the table.
        policy: Its settings; `decay` as it applies to this table.
    """

    def __init__(self, lake: Lake, runner: Runner, name: str, policy: VocabularySettings) -> None:
        self._lake = lake
        self._runner = runner
        self._policy = policy
        self._name = name

    def summarize(
        self,
        today: date,
        days: Sequence[WeightedDay],
        yesterday: tuple[date, Sequence[WeightedDay]] | None,
        owners: str | None,
    ) -> WindowSummary:
        """Merges a window.

        Args:
            today: Day of the vocabulary that is made from it.
            days: The window's counts; all lie before `today`.
            yesterday: Day and counts of the window before, which is carried on when it is kept.
            owners: Lake path of the vocabulary before, made by the same settings.

        Raises:
            DataError: Days hold IDs of different types.
        """
        id_type = check_types(self._lake, days)
        parts = _parts(days)
        carried = self._carried(days, parts, yesterday, id_type)
        tasks = self._tasks(days, parts, today, carried, id_type)
        if self._policy.coverage is None and self._policy.kept_from > 0:
            # Whoever falls below `keep_count` leaves anyway.
            least = int(np.ceil(self._policy.kept_from * UNIT))
            # Integers that did not change are known from the vocabulary before.
            only = carried is not None and id_type != TEXT
            only = only and self._policy.max_rows is None
            wanted = [replace(task, least_units=least, only_changes=only) for task in tasks]
            return replace(self._run(today, wanted, days), only_changes=only)
        if self._policy.coverage is None:
            least = self._policy.min_count * UNIT
            wanted = [replace(task, least_units=least, owners=owners) for task in tasks]
            return self._run(today, wanted, days)
        by_age = self._policy.ttl_days is not None
        everywhere = self._run(today, [replace(task, by_age=by_age) for task in tasks], days)
        least = _covering(everywhere.eligible, self._policy.coverage * everywhere.sums.units)
        merged = self._find(today, days, parts)
        done = None if merged is None else _Carried(merged, [])
        again = self._tasks(days, parts, today, done, id_type)
        wanted = [replace(task, least_units=least, owners=owners) for task in again]
        return self._map(today, wanted, days)

    def _tasks(
        self,
        days: Sequence[WeightedDay],
        parts: int,
        today: date,
        carried: _Carried | None,
        id_type: str,
    ) -> list[PartTask]:
        return [
            PartTask(
                url=self._lake.url,
                part=part,
                parts=parts,
                id_type=id_type,
                files=files_of_part(days if carried is None else carried.changes, part, parts),
                policy=self._policy,
                today=today,
                before=None if carried is None else carried.kept[part],
                state=None,
                turn=0 if carried is None else carried.turn,
                owners=None,
                least_units=_NOBODY,
                only_changes=False,
                by_age=False,
            )
            for part in range(parts)
        ]

    def _run(
        self, today: date, tasks: Sequence[PartTask], days: Sequence[WeightedDay]
    ) -> WindowSummary:
        """Merges, and keeps the window for tomorrow when that pays."""
        if not self._is_kept(days):
            return self._map(today, tasks, days)
        found: list[WindowSummary] = []

        def write(output: Output) -> None:
            states = [_left_in(output.uri(), task) for task in tasks]
            kept = [replace(task, state=state) for task, state in zip(tasks, states, strict=True)]
            found.append(self._map(today, kept, days))
            output.meta.update(
                kept=[asdict(state) for state in states],
                turn=tasks[0].turn + (tasks[0].before is not None),
                id_type=tasks[0].id_type,
            )

        identity = self._identity(days, len(tasks))
        self._lake.build(self._dataset, today, write, **identity)
        self._forget(before=today)
        # A window that an earlier attempt left is merged again: its tail stays where it is.
        return found[0] if found else self._map(today, tasks, days)

    def _map(
        self, today: date, tasks: Sequence[PartTask], days: Sequence[WeightedDay]
    ) -> WindowSummary:
        results = self._runner.map(f"window {self._name} {today}", merge_window_part, tasks)
        # The parts do not see the IDs that only sketches hold.
        units = sum(day.units * int(day.counts.manifest.meta["events"]) for day in days)
        return _summary(results, units)

    @property
    def _dataset(self) -> str:
        return f"window/{self._name}"

    def _is_kept(self, days: Sequence[WeightedDay]) -> bool:
        if any(has_sketches(day.counts) for day in days):
            # Of which days the sketches are asked about an ID changes with the window.
            return False
        return self._policy.decay == 1.0 and _rows(days) >= ROWS_TO_KEEP

    def _identity(self, days: Sequence[WeightedDay], parts: int) -> dict[str, Any]:
        policy = self._policy
        load = {"buckets": policy.tail_buckets, "hashes": policy.hashes, "seed": policy.seed}
        return {
            "inputs": {f"counts/{day.day}": day.counts.digest for day in days},
            "settings": {"parts": parts, "load": load, "format": _FORMAT},
        }

    def _carried(
        self,
        days: Sequence[WeightedDay],
        parts: int,
        yesterday: tuple[date, Sequence[WeightedDay]] | None,
        id_type: str,
    ) -> _Carried | None:
        """What turns the window before into this one, if that is kept."""
        if yesterday is None or self._policy.decay != 1.0:
            return None
        day, before = yesterday
        window = self._find(day, before, parts)
        if window is None or window.manifest.meta["id_type"] != id_type:
            return None
        known = {old.day for old in before}
        wanted = {new.day for new in days}
        entered = [new for new in days if new.day not in known]
        left = [replace(old, units=-old.units) for old in before if old.day not in wanted]
        return _Carried(window, [*entered, *left])

    def _find(self, day: date, days: Sequence[WeightedDay], parts: int) -> Published | None:
        """A window that is kept, and all that it points to."""

        def absent(_: Output) -> None:
            raise _Absent

        try:
            found = self._lake.build(self._dataset, day, absent, **self._identity(days, parts))
        except _Absent:
            return None
        folders = {path.rsplit("/", 1)[0] for kept in _kept_parts(found) for path in kept.stretches}
        return found if all(self._lake.exists(folder) for folder in folders) else None

    def _forget(self, before: date) -> None:
        """Removes windows that nobody carries on.

        The newest one may be made again tomorrow, and both it and today's point to the stretches
        that were written in the `SLICES` days before them.
        """
        folders = self._lake.list_folders(self._dataset)
        older = [name for name in folders if name < partition_name(before)]
        for name in older[: -SLICES - 1]:
            self._lake.delete(f"{self._dataset}/{name}")


@dataclass(frozen=True)
class _Carried:
    window: Published
    changes: Sequence[WeightedDay]

    @property
    def kept(self) -> list[KeptPart]:
        """Where each part is."""
        return _kept_parts(self.window)

    @property
    def turn(self) -> int:
        """The stretch that is folded next."""
        return int(self.window.manifest.meta["turn"]) % SLICES


def _kept_parts(window: Published) -> list[KeptPart]:
    found = window.manifest.meta["kept"]
    return [KeptPart(kept["sums"], kept["top"], tuple(kept["stretches"])) for kept in found]


def _left_in(folder: str, task: PartTask) -> KeptPart:
    """Where a task leaves its part."""
    if task.before is not None:
        return task.before.later(folder, task.part, task.turn)
    return kept_part(folder, task.part, layered=task.id_type != TEXT)


_NOBODY = 1 << 62
"""More units than any ID can have."""


def _rows(days: Sequence[WeightedDay]) -> int:
    return sum(day.counts.manifest.rows for day in days)


def _parts(days: Sequence[WeightedDay]) -> int:
    return parts_for(_rows(days), ROWS_PER_PART)


def _summary(results: Sequence[PartResult], units: int) -> WindowSummary:
    frames = [from_arrow(result.candidates) for result in results]
    # A part without any ID does not know their type.
    typed = [frame for frame, result in zip(frames, results, strict=True) if result.sums.ids]
    sums = [result.sums for result in results]
    return WindowSummary(
        candidates=pl.concat(typed) if typed else empty_window(),
        sums=Sums(
            ids=sum(part.ids for part in sums),
            units=units,
            histogram=add_histograms([part.histogram for part in sums]),
            load=(
                np.sum([part.load[0] for part in sums], axis=0),
                np.sum([part.load[1] for part in sums], axis=0),
            ),
        ),
        eligible=add_histograms([result.eligible for result in results]),
    )


def _covering(histogram: Histogram, share: float) -> int:
    """Units from which on IDs cover a number of units, counted from the most frequent one."""
    values, numbers = histogram
    covered = np.cumsum((values * numbers)[::-1])
    reached = int(np.searchsorted(covered, share))
    return int(values[::-1][reached]) if reached < values.size else 1
