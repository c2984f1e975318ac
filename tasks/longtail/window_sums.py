"""What a vocabulary's health and `coverage` need of a window: sums that are carried on exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from tasks.config import VocabularySettings
from tasks.longtail.bucket_load import Load, Vector, bucket_load
from tasks.longtail.window import UNIT

Histogram = tuple[Vector, Vector]
"""Different units, ascending, and the number of IDs that have each."""

_FINE_HISTOGRAM = 1 << 16
"""Distinct units up to which a part's histogram is exact."""
_COARSE_BITS = 12
"""Leading bits that a coarser histogram keeps."""


@dataclass(frozen=True)
class Sums:
    """Sums over the IDs of a window.

    Attributes:
        ids: Different IDs.
        units: Sum of their units.
        histogram: Units and how many IDs have them.
        load: IDs and units in each tail bucket if no ID owned a row, `[B]` each.
    """

    ids: int
    units: int
    histogram: Histogram
    load: Load

    def moved(self, ids: pl.Series, old: Vector, new: Vector, policy: VocabularySettings) -> Sums:
        """The sums after IDs changed their units; without decay only.

        Args:
            ids: The changed IDs, `[N]`.
            old: Their units before, 0 for an ID that was not in the window, `[N]`.
            new: Their units now, 0 for an ID that has left, `[N]`.
            policy: Says which buckets an ID belongs to.
        """
        born = (new > 0).astype(np.int64) - (old > 0)
        more = bucket_load(ids, born, new - old, policy)
        values, numbers = histogram_of(old[old > 0], exact=True)
        return Sums(
            self.ids + int(born.sum()),
            self.units + int((new - old).sum()),
            add_histograms(
                [self.histogram, histogram_of(new[new > 0], exact=True), (values, -numbers)]
            ),
            (self.load[0] + more[0], self.load[1] + more[1]),
        )

    def to_arrow(self) -> pa.Table:
        """As a table of one row."""
        vectors = {
            "values": self.histogram[0],
            "numbers": self.histogram[1],
            "load_ids": self.load[0],
            "load_units": self.load[1],
        }
        lists = {name: [vector] for name, vector in vectors.items()}
        return pa.table({"ids": [self.ids], "units": [self.units], **lists})


def sums_from_arrow(table: pa.Table) -> Sums:
    """What `Sums.to_arrow` made."""

    def vector(name: str) -> Vector:
        return np.array(table.column(name)[0].values.to_numpy(), dtype=np.int64)

    return Sums(
        table.column("ids")[0].as_py(),
        table.column("units")[0].as_py(),
        (vector("values"), vector("numbers")),
        (vector("load_ids"), vector("load_units")),
    )


def sums_of(ids: pl.Series, units: Vector, policy: VocabularySettings) -> Sums:
    """The sums of a window.

    Args:
        ids: Different IDs, `[N]`.
        units: Their units, `[N]`.
        policy: Says which buckets an ID belongs to, and whether counts decay.
    """
    load = bucket_load(ids, np.ones(units.size, dtype=np.int64), units, policy)
    return Sums(units.size, int(units.sum()), histogram_of(units, policy.decay == 1.0), load)


def histogram_of(units: Vector, exact: bool) -> Histogram:
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


def add_histograms(histograms: Sequence[Histogram]) -> Histogram:
    """The sum of histograms; numbers may be negative, those that come to 0 are dropped."""
    values, where = np.unique(
        np.concatenate([values for values, _ in histograms]), return_inverse=True
    )
    numbers = np.zeros(values.size, dtype=np.int64)
    np.add.at(numbers, where, np.concatenate([numbers for _, numbers in histograms]))
    present = numbers != 0
    return values[present], numbers[present]
