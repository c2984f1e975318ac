"""The hash that places IDs: XXH3-64 of an ID's canonical bytes, with a seed.

Canonical bytes are the UTF-8 text of a string and the decimal digits (with a minus sign where
there is one) of an integer, so `7` and `"7"` hash alike and `"07"` does not. Python's own
`hash()` would differ from process to process.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import polars_hash as plh

PARTITION_SEED = 0
"""Seed of the hash that splits strings between workers; buckets use the vocabulary's own seed."""
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER = np.uint64(_GOLDEN)
_INVERSE = np.uint64(pow(_GOLDEN, -1, 1 << 64))


def hash_ids(ids: pl.Series, seed: int) -> pl.Series:
    """XXH3-64 of each ID.

    Args:
        ids: IDs, string or integer; nulls stay null.
        seed: Seed of the hash.

    Returns:
        UInt64 `[N]`.
    """
    frame = pl.DataFrame({"id": ids.cast(pl.String)})
    return frame.select(plh.col("id").nchash.xxh3_64(seed=seed))["id"]


def tail_buckets(ids: pl.Series, *, buckets: int, hashes: int, seed: int) -> list[pl.Series]:
    """Bucket rows of tail IDs, one Int32 series `[N]` with values `1 … buckets` for each hash.

    The second hash of double hashing is the same function with `seed + 1`.
    """
    return [
        (hash_ids(ids, seed + n) % buckets).cast(pl.Int32).alias(f"bucket_{n}") + 1
        for n in range(hashes)
    ]


def place_integers(ids: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Place of each 64-bit integer, `[N]`: Fibonacci hashing (Knuth, TAOCP 3, section 6.4).

    A bijection, so places can stand for the IDs: sorting them splits the IDs into parts and
    groups equal ones at once.
    """
    return ids.view(np.uint64) * _MULTIPLIER


def integers_at(places: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The integers at `places`, `[N]`; view them as int64 when the IDs are signed."""
    return places * _INVERSE


def partition_of(ids: pl.Series, parts: int) -> pl.Series:
    """Part of each ID, UInt32 `[N]`: the top bits of an integer's place or a string's hash.

    Args:
        ids: IDs without nulls.
        parts: Number of parts, a power of two; parts of a finer split nest in a coarser one's.
    """
    bits = parts.bit_length() - 1
    if parts != 1 << bits:
        raise ValueError("the number of parts must be a power of two")
    if bits == 0:
        return pl.Series("part", [0], dtype=pl.UInt32).new_from_index(0, len(ids))
    if ids.dtype.is_integer():
        places = place_integers(integers_of(ids))
        return pl.Series("part", (places >> np.uint64(64 - bits)).astype(np.uint32))
    return (hash_ids(ids, PARTITION_SEED) // (1 << (64 - bits))).cast(pl.UInt32).alias("part")


def integers_of(ids: pl.Series) -> npt.NDArray[np.int64] | npt.NDArray[np.uint64]:
    """The IDs of an integer series without nulls as a vector of 64 bits each."""
    wide = ids if ids.dtype == pl.UInt64 else ids.cast(pl.Int64)
    return wide.rechunk().to_numpy()


def parts_for(rows: int, rows_per_part: int) -> int:
    """Smallest power of two of parts that leaves at most about `rows_per_part` rows in each.

    It depends on the data alone, never on the number of workers, and so do the results.
    """
    parts = 1
    while rows > parts * rows_per_part:
        parts *= 2
    return parts
