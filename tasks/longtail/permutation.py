"""A seeded shuffle of any number of rows that no process ever has to hold.

A balanced Feistel network is a bijection on `[0, 4**k)` whatever its round function is; walking
along its cycle until a value falls below N makes it one on `[0, N)` (format-preserving
encryption by cycle walking: Black and Rogaway, CT-RSA 2002). Each row's place follows from its
number alone, so any worker can place its rows and the result does not depend on who does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tasks.longtail.lists import Int64s

_ROUNDS = 6
UInt64s = npt.NDArray[np.uint64]


class Permutation:
    """A seeded bijection on `[0, n)`.

    Args:
        n: Number of rows.
        seed: Seed.
    """

    def __init__(self, n: int, seed: int) -> None:
        self._n = n
        self._half_bits = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
        self._keys = np.random.default_rng(seed).integers(2**63, size=_ROUNDS, dtype=np.uint64)

    def places(self, rows: Int64s) -> Int64s:
        """New place of each row, int64 like `rows`, which lie in `[0, n)`."""
        places = self._network(rows.astype(np.uint64))
        while (outside := np.flatnonzero(places >= self._n)).size:
            places[outside] = self._network(places[outside])
        return places.astype(np.int64)

    def _network(self, values: UInt64s) -> UInt64s:
        bits = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left, right = values >> bits, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << bits) | right


def _mix(values: UInt64s) -> UInt64s:
    """Finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); products wrap on purpose."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def shard_of(places: Int64s, rows: int, shards: int) -> tuple[Int64s, Int64s]:
    """Shard of each place and the place inside it; shards differ by at most one row.

    Args:
        places: Places in `[0, rows)`.
        rows: Rows in all shards.
        shards: Number of shards.
    """
    size, larger = divmod(rows, shards)
    boundary = larger * (size + 1)
    behind = places - boundary
    late = places >= boundary
    shard = np.where(late, larger + behind // max(size, 1), places // (size + 1))
    inside = np.where(late, behind % max(size, 1), places % (size + 1))
    return shard, inside
