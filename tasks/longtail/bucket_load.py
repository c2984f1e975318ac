"""How many IDs share each tail bucket, and how often they occur."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.config import VocabularySettings
from tasks.longtail.id_hash import tail_buckets

Vector = npt.NDArray[np.int64]
Load = tuple[Vector, Vector]
"""IDs and units in each tail bucket, `[B]` each."""


def bucket_load(ids: pl.Series, numbers: Vector, units: Vector, policy: VocabularySettings) -> Load:
    """Sums up what IDs bring to their tail buckets; two hashes place an ID twice.

    Args:
        ids: Different IDs, `[N]`.
        numbers: How many IDs each stands for (1, or -1 to take it out), `[N]`.
        units: Units of each, `[N]`.
        policy: Says which buckets an ID belongs to.
    """
    size = policy.tail_buckets
    if size == 1:
        # The hash decides nothing.
        return np.array([numbers.sum()]), np.array([units.sum()])
    load = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for buckets in tail_buckets(ids, buckets=size, hashes=policy.hashes, seed=policy.seed):
        places = buckets.to_numpy() - 1
        for total, values in zip(load, (numbers, units), strict=True):
            # np.bincount would add in float64; these sums may pass 2**53.
            np.add.at(total, places, values)
    return load


def load_of(window: pl.DataFrame, policy: VocabularySettings) -> Load:
    """Load of the buckets if no ID of a window owned a row.

    Args:
        window: `id` and `units`.
        policy: Says which buckets an ID belongs to.
    """
    ones = np.ones(window.height, dtype=np.int64)
    return bucket_load(window["id"], ones, window["units"].to_numpy(), policy)
