"""Ranking metrics of each user, and the slices they are reported on.

Users without targets get NaN: they are left out of means (`summarise`) and of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.jagged import Jagged

Floats = npt.NDArray[np.float64]

SLICES = ("head", "torso", "tail", "new")
"""Slices of the items, see `item_slices`."""

HEAD_SHARE = 0.5
TORSO_SHARE = 0.8


def item_slices(train_count: npt.ArrayLike) -> npt.NDArray[np.int8]:
    """Slice of every item as an index into `SLICES`, int8 `[I]`.

    Items are ordered by train interactions (ties: smaller index first). `head` is the smallest
    set that covers half of all train interactions, `torso` the items after it up to 80 %,
    `tail` the other items with any, `new` the items with none. The cut by cumulated interactions
    follows Celma and Cano, "From hits to niches?" (2008).
    """
    count = np.asarray(train_count, dtype=np.int64)
    order = np.argsort(-count, kind="stable")
    total = max(int(count.sum()), 1)
    before = (np.cumsum(count[order]) - count[order]) / total
    slices = np.empty(count.size, dtype=np.int8)
    slices[order] = np.where(before < HEAD_SHARE, 0, np.where(before < TORSO_SHARE, 1, 2))
    slices[count == 0] = 3
    return slices


def per_user_metrics(indices: Tensor, targets: Jagged, ks: Sequence[int]) -> dict[str, Floats]:
    """Recall, NDCG, MRR and hits at each cut-off, one value a user.

    `recall_at_k` is hits over targets; `ndcg_at_k` has binary gains and the ideal ranking of
    `min(targets, k)` hits; `mrr_at_k` is one over the rank of the first hit, 0 without any;
    `hits_at_k` counts the hits.

    Args:
        indices: Recommended items, best first, int64 `[U, K]`; -1 for none.
        targets: Relevant items of each user, without repetition.
        ks: Cut-offs, each at most K.

    Returns:
        Arrays `[U]` by name.
    """
    hit = _hits(indices, targets)
    counts = targets.lengths.numpy().astype(np.float64)
    metrics: dict[str, Floats] = {}
    for k in ks:
        at_k = hit[:, :k]
        discount = 1.0 / np.log2(np.arange(2, k + 2))
        ideal = np.concatenate(([0.0], np.cumsum(discount)))
        best = ideal[np.minimum(counts, k).astype(np.int64)]
        first = np.where(at_k.any(1), 1.0 / (at_k.argmax(1) + 1), 0.0)
        hits = at_k.sum(1).astype(np.float64)
        metrics[f"recall_at_{k}"] = _ratio(hits, counts)
        metrics[f"ndcg_at_{k}"] = _ratio(at_k @ discount[: at_k.shape[1]], best)
        metrics[f"mrr_at_{k}"] = np.where(counts > 0, first, np.nan)
        metrics[f"hits_at_{k}"] = np.where(counts > 0, hits, np.nan)
    return metrics


def slice_metrics(
    indices: Tensor, targets: Jagged, slices: npt.NDArray[np.int8], ks: Sequence[int]
) -> dict[str, Floats]:
    """Recall of the targets in each slice of the items, one value a user.

    Args:
        indices: Recommended items, best first, int64 `[U, K]`; -1 for none.
        targets: Relevant items of each user.
        slices: Slice of every item, from `item_slices`.
        ks: Cut-offs, each at most K.

    Returns:
        `recall_at_<k>_<slice>` arrays `[U]`; NaN for users without a target in the slice.
    """
    metrics: dict[str, Floats] = {}
    target_slice = torch.from_numpy(slices.astype(np.int64))[targets.values]
    rows = targets.row_ids()
    for number, name in enumerate(SLICES):
        inside = target_slice == number
        lengths = torch.bincount(rows[inside], minlength=len(targets))
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        hit = _hits(indices, Jagged(targets.values[inside], offsets))
        counts = lengths.numpy().astype(np.float64)
        for k in ks:
            metrics[f"recall_at_{k}_{name}"] = _ratio(hit[:, :k].sum(1).astype(np.float64), counts)
    return metrics


def coverage(indices: Tensor, num_items: int, k: int) -> float:
    """Share of the corpus that is in the top `k` of at least one user."""
    top = indices[:, :k]
    return float(torch.unique(top[top >= 0]).numel()) / max(num_items, 1)


def summarise(
    per_user: Mapping[str, Floats], users: npt.NDArray[np.bool_] | None = None
) -> dict[str, float]:
    """Mean of each metric over the users it applies to; NaN when there are none.

    Args:
        per_user: Arrays `[U]` by name.
        users: Restricts the mean to these users, bool `[U]` (for example new users).
    """
    means = {}
    for name, values in per_user.items():
        chosen = values if users is None else values[users]
        chosen = chosen[np.isfinite(chosen)]
        means[name] = float(chosen.mean()) if chosen.size else float("nan")
    return means


def _hits(indices: Tensor, targets: Jagged) -> npt.NDArray[np.bool_]:
    """Whether each recommendation is a target, bool `[U, K]`."""
    found, values = indices.numpy(), targets.values.numpy()
    size = int(max(found.max(initial=0), values.max(initial=0))) + 1
    users = np.arange(found.shape[0], dtype=np.int64)[:, None]
    wanted = targets.row_ids().numpy() * size + values
    hit: npt.NDArray[np.bool_] = np.isin(users * size + found, wanted) & (found >= 0)
    return hit


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    result = np.full(numerator.shape, np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result
