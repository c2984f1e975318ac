"""Columns of integer lists in two flat arrays, gathered without a loop over rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.longtail.columns import array_of

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ListColumn:
    """N lists of int32.

    Attributes:
        starts: Where each list starts in `values`, int64 `[N]`.
        lengths: Elements of each list, int64 `[N]`.
        values: The elements, int32; lists may overlap.
    """

    starts: Int64s
    lengths: Int64s
    values: Int32s

    @classmethod
    def of_lengths(cls, lengths: Int64s, values: Int32s) -> ListColumn:
        """Lists that lie one after another in `values`."""
        return cls(np.cumsum(lengths) - lengths, lengths, values)

    def __len__(self) -> int:
        return int(self.lengths.size)

    def take(self, rows: Int64s) -> ListColumn:
        """The lists of chosen rows; the elements are not copied."""
        return ListColumn(self.starts[rows], self.lengths[rows], self.values)

    def take_or_empty(self, rows: Int64s) -> ListColumn:
        """Like `take`, with an empty list where a row is -1."""
        if not len(self):
            nothing = np.zeros(rows.size, dtype=np.int64)
            return ListColumn(nothing, nothing, self.values)
        taken = self.take(np.maximum(rows, 0))
        return ListColumn(taken.starts, np.where(rows < 0, 0, taken.lengths), self.values)

    def flat(self) -> Int32s:
        """The elements of all lists, one list after another."""
        ends = np.cumsum(self.lengths)
        total = int(ends[-1]) if ends.size else 0
        # Element k of the result belongs to the list that it lies in, and sits as far from that
        # list's start as k lies from the list's first element in the result.
        small = max(total, self.values.size) <= np.iinfo(np.int32).max
        dtype = np.int32 if small else np.int64
        at = np.repeat((self.starts - (ends - self.lengths)).astype(dtype), self.lengths)
        at += np.arange(total, dtype=dtype)
        return self.values[at]

    def to_arrow(self) -> pa.ListArray:
        """The lists as an Arrow array of `list<int32>`.

        Raises:
            ValueError: More than 2**31 elements.
        """
        offsets = np.zeros(len(self) + 1, dtype=np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        if offsets[-1] > np.iinfo(np.int32).max:
            raise ValueError("more than 2**31 elements in one list column; use more parts")
        return pa.ListArray.from_arrays(array_of(offsets.astype(np.int32)), array_of(self.flat()))


def runs(keys: npt.NDArray[np.generic]) -> tuple[Int64s, Int64s]:
    """Runs of equal neighbours.

    Returns:
        First position of each run, and for each element the number of its run.
    """
    if keys.size == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    changes = np.empty(keys.size, dtype=bool)
    changes[0] = True
    np.not_equal(keys[1:], keys[:-1], out=changes[1:])
    return np.flatnonzero(changes).astype(np.int64), np.cumsum(changes).astype(np.int64) - 1
