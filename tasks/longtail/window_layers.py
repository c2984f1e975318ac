"""A part of a window of integers in two layers, so that a day costs its own IDs.

Rewriting a window of thirty days for each day that enters would cost more than the day. So the
changed IDs go into a small layer that covers a large one (the log-structured merge of O'Neil et
al., 1996). The large one is cut into `SLICES` stretches, and each day folds the small layer into
the next of them: every day does the same work, and a stretch is written once in `SLICES` days.
Rows are ordered by place (`id_hash.place_integers`) and hold sums, not differences; 0 units in
the small layer say that the ID has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from tasks.longtail.columns import array_of
from tasks.longtail.id_hash import integers_at, integers_of, place_integers

SLICES = 8
"""Days after which each stretch of the large layer has been written once."""

Vector = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layer:
    """Rows ordered by place.

    Attributes:
        places: Place of each ID, ascending, `[N]`.
        units: Units in the window, `[N]`.
        seen: Newest day of each ID, days since 1970, `[N]`.
    """

    places: npt.NDArray[np.uint64]
    units: Vector
    seen: npt.NDArray[np.int32]

    def __getitem__(self, rows: Any) -> Layer:
        return Layer(self.places[rows], self.units[rows], self.seen[rows])

    def to_arrow(self) -> pa.Table:
        """As a table that `from_arrow` reads without a copy."""
        columns = (self.places, self.units, self.seen)
        names = ["place", "units", "seen"]
        return pa.table([array_of(column) for column in columns], names=names)

    def to_frame(self, dtype: Any) -> pl.DataFrame:
        """As a window (`window.combine`) whose IDs have a type, Int64 or UInt64."""
        ids = integers_at(self.places)
        return pl.DataFrame(
            {
                "id": ids.view(np.int64) if dtype == pl.Int64 else ids,
                "units": self.units,
                "last_seen": pl.Series(self.seen, dtype=pl.Int32).cast(pl.Date),
            }
        )


def empty_layer() -> Layer:
    """A layer without rows."""
    return Layer(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int32))


def from_arrow(table: pa.Table) -> Layer:
    """What `Layer.to_arrow` made."""
    if not table.num_rows:
        return empty_layer()
    # One chunk, as it was written, so that nothing is copied.
    columns = [table.column(name).chunk(0).to_numpy() for name in ("place", "units", "seen")]
    return Layer(*columns)


def from_frame(window: pl.DataFrame) -> Layer:
    """A layer of a window of integers that is ordered by place."""
    return Layer(
        place_integers(integers_of(window["id"])),
        window["units"].to_numpy(),
        window["last_seen"].to_physical().to_numpy(),
    )


def found_in(layer: Layer, places: npt.NDArray[np.uint64]) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """Where ascending places are, or would be, in a layer; and whether they are there."""
    at = np.searchsorted(layer.places, places)
    if not layer.places.size:
        return at, np.zeros(places.size, dtype=bool)
    return at, layer.places.take(at, mode="clip") == places


def covered(below: Layer, above: Layer) -> Layer:
    """Both layers in one; where both have an ID, what lies above counts."""
    if not below.places.size or not above.places.size:
        return above if not below.places.size else below
    return _covered_at(below, above, *found_in(below, above.places))


def _covered_at(below: Layer, above: Layer, at: Vector, known: npt.NDArray[np.bool_]) -> Layer:
    fresh = np.flatnonzero(~known)
    # Where the old and the new rows go is worked out once for all columns.
    is_new = np.zeros(below.places.size + fresh.size, dtype=bool)
    is_new[at[fresh] + np.arange(fresh.size)] = True
    new, old = np.flatnonzero(is_new), np.flatnonzero(~is_new)
    touched = old[at[known]]

    def merged(column: npt.NDArray[Any], over: npt.NDArray[Any]) -> npt.NDArray[Any]:
        values = np.empty(is_new.size, dtype=column.dtype)
        values[old] = column
        values[new] = over[fresh]
        values[touched] = over[known]
        return values

    places = np.empty(is_new.size, dtype=np.uint64)
    places[old], places[new] = below.places, above.places[fresh]
    return Layer(places, merged(below.units, above.units), merged(below.seen, above.seen))


def joined(layers: Sequence[Layer]) -> Layer:
    """Layers of ascending ranges of places as one."""
    if len(layers) == 1:
        return layers[0]
    return Layer(
        np.concatenate([layer.places for layer in layers]),
        np.concatenate([layer.units for layer in layers]),
        np.concatenate([layer.seen for layer in layers]),
    )


@dataclass(frozen=True)
class Layers:
    """A part of a window.

    Attributes:
        stretches: The large layer, cut by place, `SLICES` of them.
        top: The small layer.
        part: Number of the part.
        parts: Parts of the window.
    """

    stretches: tuple[Layer, ...]
    top: Layer
    part: int
    parts: int

    def bounds(self, places: npt.NDArray[np.uint64]) -> Vector:
        """Where each stretch begins in ascending places of the part, `[SLICES + 1]`."""
        return stretch_bounds(places, self.part, self.parts)

    def changed(self, changes: Layer) -> tuple[Layers, Layer, Vector]:
        """Adds changes.

        Args:
            changes: Units that are added (or taken away), and days.

        Returns:
            The part with the changes in its small layer, the changed IDs as they are now (0 units
            for those that have left), and the units of each before.
        """
        old = np.zeros(changes.places.size, dtype=np.int64)
        seen = changes.seen.copy()
        at, known = found_in(self.top, changes.places)
        _take(self.top, at, known, np.flatnonzero(known), old, seen)
        # Only what the small layer does not know is looked up in the large one.
        others = np.flatnonzero(~known)
        places = changes.places[others]
        bounds = self.bounds(places)
        for number, stretch in enumerate(self.stretches):
            rows = slice(bounds[number], bounds[number + 1])
            where, met = found_in(stretch, places[rows])
            _take(stretch, where, met, others[rows][met], old, seen)
        # Who had left before is as good as never seen.
        seen = np.where(old > 0, np.maximum(seen, changes.seen), changes.seen)
        now = Layer(changes.places, old + changes.units, seen)
        top = _covered_at(self.top, now, at, known) if self.top.places.size else now
        return Layers(self.stretches, top, self.part, self.parts), now, old

    def folded(self, number: int) -> Layers:
        """The part with one stretch of the small layer folded into the large one."""
        bounds = self.bounds(self.top.places)
        first, last = int(bounds[number]), int(bounds[number + 1])
        whole = covered(self.stretches[number], self.top[first:last])
        whole = whole[whole.units != 0] if last > first else whole
        stretches = (*self.stretches[:number], whole, *self.stretches[number + 1 :])
        top = joined([self.top[:first], self.top[last:]])
        return Layers(stretches, top, self.part, self.parts)

    def at_least(self, units: int) -> Layer:
        """The IDs with so many units (at least 1)."""
        bounds = self.bounds(self.top.places)
        found = []
        for number, stretch in enumerate(self.stretches):
            many = stretch[np.flatnonzero(stretch.units >= units)]
            over = self.top[bounds[number] : bounds[number + 1]]
            many = many[~found_in(over, many.places)[1]]
            found.append(covered(many, over[over.units >= units]))
        return joined(found)


def stretch_bounds(places: npt.NDArray[np.uint64], part: int, parts: int) -> Vector:
    """Where each stretch of a part begins in its ascending places, `[SLICES + 1]`."""
    width = 64 - (parts * SLICES).bit_length() + 1
    first = part * SLICES
    borders = [(first + number) << width for number in range(1, SLICES)]
    inner = np.searchsorted(places, np.array(borders, dtype=np.uint64))
    return np.concatenate([[0], inner, [places.size]]).astype(np.int64)


def layers_of(window: Layer, part: int, parts: int) -> Layers:
    """A part whose small layer is empty."""
    bounds = stretch_bounds(window.places, part, parts)
    stretches = tuple(window[bounds[n] : bounds[n + 1]] for n in range(SLICES))
    return Layers(stretches, empty_layer(), part, parts)


def _take(
    layer: Layer,
    at: Vector,
    known: npt.NDArray[np.bool_],
    to: Vector,
    units: Vector,
    seen: npt.NDArray[np.int32],
) -> None:
    """Puts what was found in a layer into vectors, at the rows `to`."""
    rows = at[known]
    units[to] = layer.units[rows]
    seen[to] = layer.seen[rows]
