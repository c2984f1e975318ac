"""How many IDs share each tail bucket, and how often they occur."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.config import VocabularySettings
from tasks.longtail.id_hash import tail_buckets

Vector = npt.NDArray[np.int64]


def bucket_load(rows: pl.DataFrame, policy: VocabularySettings) -> tuple[Vector, Vector]:
    """IDs and units in each tail bucket, `[B]` each; two hashes place an ID twice.

    Args:
        rows: `id` and `units` of different IDs.
        policy: Says which buckets an ID belongs to.
    """
    size = policy.tail_buckets
    ids, units = np.zeros(size, np.int64), np.zeros(size, np.int64)
    weights = rows["units"].to_numpy()
    if size == 1:
        # The hash decides nothing.
        return ids + weights.size, units + weights.sum()
    for buckets in tail_buckets(rows["id"], buckets=size, hashes=policy.hashes, seed=policy.seed):
        places = buckets.to_numpy() - 1
        ids += np.bincount(places, minlength=size)
        # np.bincount would add in float64; these sums may pass 2**53.
        np.add.at(units, places, weights)
    return ids, units
