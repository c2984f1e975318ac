"""One part of a table's window, merged where the data is.

A worker merges its part of the daily counts and gives back what the admission needs: the IDs
that may own a row, and sums over all others. The tail itself stays in the lake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import polars as pl
import pyarrow as pa

from tasks.config import VocabularySettings
from tasks.lake import Lake
from tasks.longtail.bucket_load import Load, Vector, bucket_load, load_of
from tasks.longtail.columns import from_arrow, scan
from tasks.longtail.id_hash import partition_of
from tasks.longtail.window import (
    UNIT,
    WeightedDay,
    add_up,
    carry,
    combine,
    empty_window,
    is_recent,
)

Histogram = tuple[Vector, Vector]
"""Different units, ascending, and the number of IDs that have each."""

_FINE_HISTOGRAM = 1 << 16
"""Distinct units up to which a part's histogram is exact."""
_COARSE_BITS = 12
"""Leading bits that a coarser histogram keeps."""


@dataclass(frozen=True)
class CountFile:
    """A file of daily counts and what its occurrences weigh."""

    path: str
    units: int
    day: date
    whole: bool
    """Whether all of it belongs to the part."""


@dataclass(frozen=True)
class PartTask:
    """Merging of one part of a window."""

    url: str
    part: int
    parts: int
    files: tuple[CountFile, ...]
    policy: VocabularySettings
    today: date
    before: str | None
    """State of the window that is carried on, a lake path; None to merge all days."""
    state: str | None
    """Where the merged part is left for tomorrow."""
    owners: str | None
    """Lake path of yesterday's vocabulary, when its owners are wanted whatever their count."""
    least_units: int
    """IDs with so many units are given back."""


@dataclass(frozen=True)
class PartResult:
    """What is known of a part."""

    candidates: pa.Table
    """`id`, `units`, `last_seen` of the IDs that may own a row."""
    ids: int
    units: int
    histogram: Histogram
    """Of all IDs, for the rank-frequency curve."""
    eligible: Histogram
    """Of the IDs seen recently enough to own a row."""
    load_ids: Vector
    """IDs in each tail bucket if none owned a row, `[B]`."""
    load_units: Vector
    """Units in each tail bucket if no ID owned a row, `[B]`."""


def load_path(state: str) -> str:
    """Lake path of the bucket load that belongs to a part's state."""
    return state.replace("part-", "load-")


def files_of_part(days: Sequence[WeightedDay], part: int, parts: int) -> tuple[CountFile, ...]:
    """Files of daily counts that hold IDs of a part, also where a day has other parts."""
    found = []
    for day in days:
        paths = day.counts.files()
        if day.parts >= parts:
            each = day.parts // parts
            chosen = paths[part * each : (part + 1) * each]
        else:
            chosen = [paths[part * day.parts // parts]]
        whole = day.parts >= parts
        found += [CountFile(path, day.units, day.day, whole) for path in chosen]
    return tuple(found)


def merge_window_part(task: PartTask) -> PartResult:
    """Merges a part, leaves it for tomorrow and sums it up."""
    lake = Lake(task.url)
    changed = [_weighted(lake, task, file) for file in task.files]
    changed = [frame for frame in changed if frame.height]
    before = None if task.before is None else from_arrow(_read_ipc(lake, task.before))
    if before is None or before.is_empty():
        merged = combine(changed) if changed else empty_window()
        load = load_of(merged, task.policy)
    else:
        merged, load = _carried(lake, task, before, changed)
    if task.state is not None:
        _write_ipc(lake, task.state, merged.to_arrow(compat_level=pl.CompatLevel.oldest()))
        columns = {"ids": pa.array(load[0]), "units": pa.array(load[1])}
        _write_ipc(lake, load_path(task.state), pa.table(columns))
    units = merged["units"].to_numpy()
    exact = task.policy.decay == 1.0
    histogram = eligible = _histogram(units, exact)
    if task.policy.ttl_days is not None:
        recent = merged.filter(is_recent(task.policy, task.today))
        eligible = _histogram(recent["units"].to_numpy(), exact)
    return PartResult(
        candidates=_candidates(lake, task, merged),
        ids=merged.height,
        units=int(units.sum()),
        histogram=histogram,
        eligible=eligible,
        load_ids=load[0],
        load_units=load[1],
    )


def _weighted(lake: Lake, task: PartTask, file: CountFile) -> pl.DataFrame:
    frame = scan(lake, file.path, ["id", "count"]).collect()
    if not file.whole and frame.height:
        frame = frame.filter(partition_of(frame["id"], task.parts) == task.part)
    return frame.select(
        "id",
        (pl.col("count") * file.units).alias("units"),
        pl.lit(file.day).alias("last_seen"),
    )


def _candidates(lake: Lake, task: PartTask, merged: pl.DataFrame) -> pa.Table:
    wanted = pl.col("units") >= task.least_units
    if task.owners is not None and merged.height:
        owners = from_arrow(lake.read_table(task.owners, ["id"]))["id"]
        if owners.len():
            wanted = wanted | pl.col("id").is_in(owners.implode())
    found = merged.filter(wanted)
    return found.to_arrow(compat_level=pl.CompatLevel.oldest())


def _histogram(units: Vector, exact: bool) -> Histogram:
    """How many IDs have how many units.

    Without decay it is exact. With decay nearly every ID may have units of its own; then they
    are rounded down to their leading bits (to 0.05 %).
    """
    if exact:
        counts = units >> np.int64(UNIT.bit_length() - 1)
        # What is too large for the vector of numbers is so rare that sorting it costs nothing.
        small = np.bincount(np.minimum(counts, _FINE_HISTOGRAM), minlength=1)[:_FINE_HISTOGRAM]
        values, numbers = np.unique(counts[counts >= _FINE_HISTOGRAM], return_counts=True)
        present = np.flatnonzero(small)
        values = np.concatenate([present, values])
        return values * UNIT, np.concatenate([small[present], numbers])
    values, numbers = np.unique(units, return_counts=True)
    if values.size <= _FINE_HISTOGRAM:
        return values, numbers
    dropped = np.maximum(np.frexp(values.astype(np.float64))[1] - _COARSE_BITS, 0)
    coarse, where = np.unique(values >> dropped << dropped, return_inverse=True)
    return coarse, np.bincount(where, weights=numbers).astype(np.int64)


def _carried(
    lake: Lake, task: PartTask, before: pl.DataFrame, changed: Sequence[pl.DataFrame]
) -> tuple[pl.DataFrame, Load]:
    """Yesterday's window and bucket load with what the changed days did to them."""
    assert task.before is not None
    known = from_arrow(_read_ipc(lake, load_path(task.before)))
    ids, units = known["ids"].to_numpy(), known["units"].to_numpy()
    if not changed:
        return before, (ids, units)
    changes = add_up(changed)
    merged, born = carry(before, changes)
    more = bucket_load(changes["id"], born, changes["units"].to_numpy(), task.policy)
    return merged, (ids + more[0], units + more[1])


def _read_ipc(lake: Lake, path: str) -> pa.Table:
    with lake.open_input(path) as stream:
        return pa.ipc.open_file(stream).read_all()


def _write_ipc(lake: Lake, path: str, table: pa.Table) -> None:
    with lake.open_output(path) as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
