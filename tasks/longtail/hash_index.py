"""Looking up many IDs at once in a table that is built once and probed for ever.

A join builds its hash table again for every batch. Here the table is built once, by open
addressing with linear probing, and a batch is probed with a few gathers. The hash of integers is
a bijection, so equal hashes are equal IDs; text is compared where its hash is found.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.longtail.id_hash import PARTITION_SEED, hash_ids
from tasks.longtail.lists import Int32s, Int64s

UInt64s = npt.NDArray[np.uint64]

_SLOTS_PER_ID = 4
_BLOCK = 1 << 15
"""IDs probed at a time: what is computed for them stays in the processor's cache."""


class HashIndex:
    """Values of IDs.

    Args:
        ids: Distinct IDs without nulls, `[N]`.
        values: Value of each ID, int32 `[N]`, not negative.
    """

    def __init__(self, ids: pl.Series, values: Int32s) -> None:
        self._ids = ids
        self._exact = ids.dtype.is_integer()
        # Place -1, which stands for no ID, finds the value at the end.
        self._values = np.append(values, np.int32(-1))
        bits = max(1, (_SLOTS_PER_ID * len(ids)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        # Hash 0 marks an empty slot; the ID that has it, if any, is kept beside the table.
        self._hashes = np.zeros(1 << bits, dtype=np.uint64)
        self._places = np.full(1 << bits, -1, dtype=np.int32)
        hashes = _mixed(_bits(ids))
        self._insert(hashes)
        of_zero = np.flatnonzero(hashes == 0)
        self._of_zero = int(of_zero[0]) if of_zero.size else None
        if self._exact:
            # Nothing has to be confirmed: the slots hold the values themselves.
            self._places = self._values[self._places]
            self._of_zero = None if self._of_zero is None else int(values[self._of_zero])

    @property
    def dtype(self) -> pl.DataType:
        """Type of the IDs."""
        return self._ids.dtype

    def values(self, ids: pl.Series) -> Int32s:
        """Value of each ID, int32 `[M]`; -1 where it has none.

        Args:
            ids: IDs of the index's type, `[M]`; nulls have no value.
        """
        if not len(self._ids):
            return np.full(len(ids), -1, dtype=np.int32)
        bits = _bits(ids)
        found = np.empty(len(ids), dtype=np.int32)
        for first in range(0, len(ids), _BLOCK):
            block = slice(first, first + _BLOCK)
            found[block] = self._find(_mixed(bits[block]))
        if ids.null_count():
            found[ids.is_null().to_numpy()] = -1
        if self._exact:
            return found
        self._confirm(ids, found)
        return self._values[found]

    def _insert(self, hashes: UInt64s) -> None:
        waiting = np.flatnonzero(hashes != 0)
        slots = self._home(hashes[waiting])
        while waiting.size:
            free = self._places[slots] < 0
            # Of several that want a slot the last one gets it.
            self._places[slots[free]] = waiting[free]
            placed = self._places[slots] == waiting
            self._hashes[slots[placed]] = hashes[waiting[placed]]
            waiting, slots = waiting[~placed], (slots[~placed] + 1) & self._mask

    def _home(self, hashes: UInt64s) -> Int64s:
        return (hashes >> self._shift).view(np.int64)

    def _find(self, hashes: UInt64s) -> Int32s:
        """What the slot of each hash holds, -1 where no slot has it."""
        slots = self._home(hashes)
        # No slot lies outside; told so, numpy takes without looking, a quarter faster.
        met = self._hashes.take(slots, mode="clip")
        other = met != hashes
        held = self._places.take(slots, mode="clip")
        held |= -other.astype(np.int32)  # -1 for the others, without a branch for each
        rows = np.flatnonzero(other & (met != 0))
        slots = slots[rows]
        while rows.size:
            slots = (slots + 1) & self._mask
            met = self._hashes[slots]
            hit = met == hashes[rows]
            held[rows[hit]] = self._places[slots[hit]]
            go_on = ~hit & (met != 0)
            rows, slots = rows[go_on], slots[go_on]
        if self._of_zero is not None:
            held[hashes == 0] = self._of_zero
        return held

    def _confirm(self, ids: pl.Series, places: Int32s) -> None:
        """Puts right what has the hash of another ID."""
        met = self._ids.gather(np.maximum(places, 0))
        wrong = np.flatnonzero((places >= 0) & (met != ids).fill_null(False).to_numpy())
        if wrong.size:
            # Two texts with one 64-bit hash: so rare that a join over all of them will do.
            known = pl.DataFrame({"id": self._ids}).with_row_index("place")
            asked = pl.DataFrame({"id": ids[wrong]})
            joined = asked.join(known, on="id", how="left", maintain_order="left")
            places[wrong] = joined["place"].cast(pl.Int32).fill_null(-1).to_numpy()


def numbered(ids: pl.Series) -> tuple[pl.Series, Int32s]:
    """The distinct IDs, ascending, and the place of each ID among them, int32 `[M]`.

    Args:
        ids: IDs without nulls, `[M]`.
    """
    known = ids.unique().sort()
    index = HashIndex(known, np.arange(len(known), dtype=np.int32))
    return known, index.values(ids)


def _bits(ids: pl.Series) -> UInt64s:
    """64 bits of each ID, anything for a null: an integer's own, a text's hash."""
    hashed = ids if ids.dtype.is_integer() else hash_ids(ids, PARTITION_SEED)
    if hashed.null_count():  # a call of Polars costs more than a few IDs do
        hashed = hashed.fill_null(0)
    return hashed.to_numpy().view(np.uint64)


def _mixed(x: UInt64s) -> UInt64s:
    """Spreads bits over the whole word.

    A bijection: each of its steps can be undone (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x
