"""Looking up many IDs at once in a table that is built once and probed for ever.

A join builds its hash table again for every batch; here the hashes of the known IDs are sorted
once, and a batch is probed with a few gathers. A hit is confirmed by the ID itself, so two IDs
with one hash cannot be confused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.longtail.lists import Int32s, Int64s

UInt64s = npt.NDArray[np.uint64]


class HashIndex:
    """Values of IDs.

    Args:
        ids: Distinct IDs without nulls, `[N]`.
        values: Value of each ID, int32 `[N]`, not negative.
        hashes: A well-mixed 64-bit hash of each ID, `[N]`.
    """

    def __init__(self, ids: pl.Series, values: Int32s, hashes: UInt64s) -> None:
        order = np.argsort(hashes)
        self._ids = ids[order]
        self._values = values[order]
        self._hashes = hashes[order]
        # A bucket is a range of the sorted hashes; with two to four buckets an ID most hold none.
        bits = int(2 * hashes.size).bit_length()
        self._shift = np.uint64(64 - bits)
        held = np.bincount((self._hashes >> self._shift).astype(np.int64), minlength=1 << bits)
        self._starts = np.zeros(held.size + 1, dtype=np.int64)
        np.cumsum(held, out=self._starts[1:])

    @property
    def dtype(self) -> pl.DataType:
        """Type of the IDs."""
        return self._ids.dtype

    def values(self, ids: pl.Series, hashes: UInt64s) -> Int32s:
        """Value of each ID, int32 `[M]`; -1 where it has none.

        Args:
            ids: IDs of the index's type, `[M]`; nulls have no value.
            hashes: Their hashes, anything where the ID is null.
        """
        found = np.full(hashes.size, -1, dtype=np.int32)
        if not self._values.size:
            return found
        rows, places = self._equal_hashes(hashes)
        same = self._same(ids, rows, places)
        found[rows[same]] = self._values[places[same]]
        missed = rows[~same]
        if missed.size:
            # Another ID with the same 64-bit hash, or a null: rare enough for a join.
            found[missed] = self._joined(ids[missed])
        return found

    def _equal_hashes(self, hashes: UInt64s) -> tuple[Int64s, Int64s]:
        """Rows of the batch that find their hash in the index, and the place of the first one."""
        bucket = (hashes >> self._shift).astype(np.int64)
        at, end = self._starts[bucket], self._starts[bucket + 1]
        rows = np.flatnonzero(at < end)
        at, end, wanted = at[rows], end[rows], hashes[rows]
        hit_rows, hit_places = [], []
        while rows.size:
            hit = self._hashes[at] == wanted
            hit_rows.append(rows[hit])
            hit_places.append(at[hit])
            at += 1
            go_on = ~hit & (at < end)
            rows, at, end, wanted = rows[go_on], at[go_on], end[go_on], wanted[go_on]
        nothing = np.zeros(0, dtype=np.int64)
        return (
            np.concatenate(hit_rows) if hit_rows else nothing,
            np.concatenate(hit_places) if hit_places else nothing,
        )

    def _same(self, ids: pl.Series, rows: Int64s, places: Int64s) -> npt.NDArray[np.bool_]:
        if ids.dtype.is_integer() and not ids.null_count():
            same: npt.NDArray[np.bool_] = ids.to_numpy()[rows] == self._ids.to_numpy()[places]
            return same
        return (ids[rows] == self._ids[places]).fill_null(False).to_numpy()

    def _joined(self, ids: pl.Series) -> Int32s:
        known = pl.DataFrame({"id": self._ids, "value": self._values})
        frame = pl.DataFrame({"id": ids})
        joined = frame.join(known, on="id", how="left", maintain_order="left")
        return joined["value"].fill_null(-1).to_numpy()
