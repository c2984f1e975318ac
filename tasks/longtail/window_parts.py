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
from tasks.longtail import window_layers
from tasks.longtail.columns import from_arrow, scan
from tasks.longtail.id_hash import partition_of
from tasks.longtail.seen_once import has_sketches, rows_seen_once
from tasks.longtail.window import WeightedDay, add_up, carry_text, combine, empty_window, is_recent
from tasks.longtail.window_layers import SLICES, Layers, empty_layer, from_frame, layers_of
from tasks.longtail.window_sums import Histogram, Sums, histogram_of, sums_from_arrow, sums_of

TEXT = str(pl.String())


@dataclass(frozen=True)
class CountFile:
    """A file of daily counts and what its occurrences weigh."""

    path: str
    units: int
    day: date
    part: int
    """Which part of the day's counts it is."""
    parts: int
    """Parts of the day's counts."""
    seen_once: bool
    """Whether a sketch of the IDs seen once lies beside it."""


@dataclass(frozen=True)
class KeptPart:
    """Where a part of a window was left, in lake paths."""

    sums: str
    """Its sums."""
    top: str
    """The small layer of integers; all rows of text."""
    stretches: tuple[str, ...]
    """The large layer of integers, `SLICES` files; none of text."""

    def later(self, folder: str, part: int, turn: int) -> KeptPart:
        """Where the part is left a day later, with one stretch folded."""
        new = kept_part(folder, part, bool(self.stretches))
        old = self.stretches
        stretches = [new.stretches[n] if n == turn else path for n, path in enumerate(old)]
        return KeptPart(new.sums, new.top, tuple(stretches))


def kept_part(folder: str, part: int, layered: bool) -> KeptPart:
    """Where a part is left when all of it is written."""
    name = f"{folder}/part-{part:05d}"
    stretches = tuple(f"{name}-stretch-{number}.arrow" for number in range(SLICES))
    return KeptPart(f"{name}-sums.arrow", f"{name}.arrow", stretches if layered else ())


@dataclass(frozen=True)
class PartTask:
    """Merging of one part of a window."""

    url: str
    part: int
    parts: int
    id_type: str
    """Polars type of the IDs."""
    files: tuple[CountFile, ...]
    policy: VocabularySettings
    today: date
    before: KeptPart | None
    """The window that is carried on; None to merge all days."""
    state: KeptPart | None
    """Where the merged part is left for tomorrow."""
    turn: int
    """Stretch of the large layer that is folded when a window is carried on."""
    owners: str | None
    """Lake path of yesterday's vocabulary, when its owners are wanted whatever their count."""
    least_units: int
    """IDs with so many units are given back."""
    only_changes: bool
    """Whether of those only the IDs are wanted that have, or had before, so many units and
    changed them; for integers whose window is carried on."""
    by_age: bool
    """Whether the units of the IDs seen recently enough are wanted apart."""


@dataclass(frozen=True)
class PartResult:
    """What is known of a part."""

    candidates: pa.Table
    """`id`, `units`, `last_seen` of the IDs that were asked for."""
    sums: Sums
    eligible: Histogram
    """Of the IDs seen recently enough to own a row; of all IDs unless it was asked for."""


def files_of_part(days: Sequence[WeightedDay], part: int, parts: int) -> tuple[CountFile, ...]:
    """Files of daily counts that hold IDs of a part, also where a day has other parts."""
    found = []
    for day in days:
        paths = day.counts.tables()
        first = part * day.parts // parts
        chosen = range(first, first + max(1, day.parts // parts))
        sketches = has_sketches(day.counts)
        found += [
            CountFile(paths[number], day.units, day.day, number, day.parts, sketches)
            for number in chosen
        ]
    return tuple(found)


def merge_window_part(task: PartTask) -> PartResult:
    """Merges a part, leaves it for tomorrow and sums it up."""
    lake = Lake(task.url)
    changed = [_weighted(lake, task, file) for file in task.files]
    if any(file.seen_once for file in task.files):
        changed += rows_seen_once(lake, task.files, changed)
    changed = [frame for frame in changed if frame.height]
    return (_merge_text if task.id_type == TEXT else _merge_integers)(lake, task, changed)


def _merge_integers(lake: Lake, task: PartTask, changed: Sequence[pl.DataFrame]) -> PartResult:
    dtype = pl.UInt64() if task.id_type == str(pl.UInt64()) else pl.Int64()
    if task.before is None:
        merged = combine(changed) if changed else empty_window(dtype)
        sums = sums_of(merged["id"], merged["units"].to_numpy(), task.policy)
        layers = layers_of(from_frame(merged), task.part, task.parts)
        written, moved = range(SLICES), empty_layer()
    else:
        layers, sums = _read_layers(lake, task, task.before), _read_sums(lake, task.before)
        moved = empty_layer()
        if changed:
            changes = add_up(changed)
            layers, now, old = layers.changed(from_frame(changes))
            sums = sums.moved(changes["id"], old, now.units, task.policy)
            moved = now[np.maximum(old, now.units) >= task.least_units]
        if task.state is not None:
            layers = layers.folded(task.turn)
        written = range(task.turn, task.turn + 1)
    if task.state is not None:
        for number in written:
            _write_ipc(lake, task.state.stretches[number], layers.stretches[number].to_arrow())
        _write_ipc(lake, task.state.top, layers.top.to_arrow())
        _write_ipc(lake, task.state.sums, sums.to_arrow())
    if task.only_changes:
        return PartResult(_plain(moved.to_frame(dtype)), sums, sums.histogram)
    if task.owners is None and not task.by_age:
        found = layers.at_least(task.least_units).to_frame(dtype)
        return PartResult(_plain(found), sums, sums.histogram)
    return _of_whole(lake, task, layers.at_least(1).to_frame(dtype), sums)


def _merge_text(lake: Lake, task: PartTask, changed: Sequence[pl.DataFrame]) -> PartResult:
    before = None if task.before is None else from_arrow(_read_ipc(lake, task.before.top))
    if task.before is None or before is None or before.is_empty():
        merged = combine(changed) if changed else empty_window()
        sums = sums_of(merged["id"], merged["units"].to_numpy(), task.policy)
    else:
        merged, sums = before, _read_sums(lake, task.before)
        if changed:
            changes = add_up(changed)
            merged, old, new = carry_text(before, changes)
            sums = sums.moved(changes["id"], old, new, task.policy)
    if task.state is not None:
        _write_ipc(lake, task.state.top, _plain(merged))
        _write_ipc(lake, task.state.sums, sums.to_arrow())
    return _of_whole(lake, task, merged, sums)


def _of_whole(lake: Lake, task: PartTask, merged: pl.DataFrame, sums: Sums) -> PartResult:
    """What is asked of a part, by looking at all its IDs."""
    eligible = sums.histogram
    if task.by_age:
        recent = merged.filter(is_recent(task.policy, task.today))
        eligible = histogram_of(recent["units"].to_numpy(), task.policy.decay == 1.0)
    wanted = pl.col("units") >= task.least_units
    if task.owners is not None and merged.height:
        owners = from_arrow(lake.read_table(task.owners, ["id"]))["id"]
        if owners.len():
            wanted = wanted | pl.col("id").is_in(owners.implode())
    return PartResult(_plain(merged.filter(wanted)), sums, eligible)


def _weighted(lake: Lake, task: PartTask, file: CountFile) -> pl.DataFrame:
    frame = scan(lake, file.path, ["id", "count"]).collect()
    if file.parts < task.parts and frame.height:
        frame = frame.filter(partition_of(frame["id"], task.parts) == task.part)
    return frame.select(
        "id",
        (pl.col("count") * file.units).alias("units"),
        pl.lit(file.day).alias("last_seen"),
    )


def _read_layers(lake: Lake, task: PartTask, kept: KeptPart) -> Layers:
    stretches = [window_layers.from_arrow(_read_ipc(lake, path)) for path in kept.stretches]
    top = window_layers.from_arrow(_read_ipc(lake, kept.top))
    return Layers(tuple(stretches), top, task.part, task.parts)


def _read_sums(lake: Lake, kept: KeptPart) -> Sums:
    return sums_from_arrow(_read_ipc(lake, kept.sums))


def _plain(frame: pl.DataFrame) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def _read_ipc(lake: Lake, path: str) -> pa.Table:
    if lake.is_local and lake.exists(path):
        # Only what is looked at is read, and nothing is copied.
        return pa.ipc.open_file(pa.memory_map(lake.abspath(path))).read_all()
    with lake.open_input(path) as stream:
        return pa.ipc.open_file(stream).read_all()


def _write_ipc(lake: Lake, path: str, table: pa.Table) -> None:
    with lake.open_output(path) as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
