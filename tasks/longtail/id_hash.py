"""The hash that places IDs: XXH3-64 of an ID's canonical bytes, with a seed.

Canonical bytes are the UTF-8 text of a string and the decimal digits (with a minus sign where
there is one) of an integer, so `7` and `"7"` hash alike and `"07"` does not. Python's own
`hash()` would differ from process to process.
"""

from __future__ import annotations

import polars as pl
import polars_hash as plh

PARTITION_SEED = 0
"""Seed of the hash that splits data between workers; buckets use the vocabulary's own seed."""


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


def partition_of(ids: pl.Series, parts: int) -> pl.Series:
    """Part of each ID, UInt32 `[N]`: the top bits of its hash.

    Args:
        ids: IDs without nulls.
        parts: Number of parts, a power of two; parts of a finer split nest in a coarser one's.
    """
    bits = parts.bit_length() - 1
    if parts != 1 << bits:
        raise ValueError("the number of parts must be a power of two")
    if bits == 0:
        return pl.Series("part", [0], dtype=pl.UInt32).new_from_index(0, len(ids))
    return (hash_ids(ids, PARTITION_SEED) // (1 << (64 - bits))).cast(pl.UInt32).alias("part")


def parts_for(rows: int, rows_per_part: int) -> int:
    """Smallest power of two of parts that leaves at most about `rows_per_part` rows in each.

    It depends on the data alone, never on the number of workers, and so do the results.
    """
    parts = 1
    while rows > parts * rows_per_part:
        parts *= 2
    return parts
