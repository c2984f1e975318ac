"""Exact top-K retrieval over the whole corpus."""

from __future__ import annotations

import torch
from torch import Tensor

from models.jagged import Jagged


def top_k(
    user_vectors: Tensor,
    item_vectors: Tensor,
    k: int,
    seen: Jagged | None = None,
    *,
    user_block: int = 1024,
    item_block: int = 1 << 16,
) -> tuple[Tensor, Tensor]:
    """The `k` items with the largest inner product for each user, by blocked matrix products.

    Equal scores are ordered by item index, so the result does not depend on the block sizes.

    Args:
        user_vectors: `[U, D]`.
        item_vectors: `[I, D]`.
        k: Items wanted for each user.
        seen: Items to leave out, one row for each user.
        user_block: Users scored at once.
        item_block: Items scored at once; both bound the memory.

    Returns:
        Item indices int64 `[U, k]` and scores `[U, k]`, best first. Where fewer than `k` items
        are left, the rest is -1 with score -inf.
    """
    indices = torch.full((len(user_vectors), k), -1, dtype=torch.int64)
    scores = torch.full((len(user_vectors), k), -torch.inf, dtype=user_vectors.dtype)
    if len(item_vectors) == 0:
        return indices, scores
    for start in range(0, len(user_vectors), user_block):
        users = user_vectors[start : start + user_block]
        stop = start + len(users)
        hidden = None if seen is None else seen.slice(start, stop)
        found = [
            _block_top_k(users, item_vectors[first : first + item_block], first, k, hidden)
            for first in range(0, len(item_vectors), item_block)
        ]
        # Blocks are in the order of their items and sorted inside, so a stable sort keeps the
        # smaller index first among equals.
        block_scores = torch.cat([s for _, s in found], dim=1)
        block_indices = torch.cat([i for i, _ in found], dim=1)
        best, order = torch.sort(block_scores, dim=1, descending=True, stable=True)
        kept = min(k, best.shape[1])
        scores[start:stop, :kept] = best[:, :kept].cpu()
        indices[start:stop, :kept] = block_indices.gather(1, order[:, :kept]).cpu()
    indices[scores == -torch.inf] = -1
    return indices, scores


def _block_top_k(
    users: Tensor, items: Tensor, first: int, k: int, seen: Jagged | None
) -> tuple[Tensor, Tensor]:
    """Top `k` of one block of items, ordered by score, then index."""
    scores = users @ items.T
    if seen is not None:
        rows, columns = seen.row_ids(), seen.values - first
        inside = (columns >= 0) & (columns < len(items))
        scores[rows[inside], columns[inside]] = -torch.inf
    k = min(k, len(items))
    # One more than wanted shows whether items tie for the last place; topk picks any of them.
    best, columns = torch.topk(scores, min(k + 1, len(items)), dim=1)
    if best.shape[1] > k:
        last = best[:, k - 1 : k]
        tied = (best[:, k:] == last)[:, 0] & (last > -torch.inf)[:, 0]
        best, columns = best[:, :k], columns[:, :k]
        if bool(tied.any()):
            columns[tied] = _first_of_the_tied(scores[tied], last[tied], k)
            best[tied] = scores[tied].gather(1, columns[tied])
    columns, by_index = torch.sort(columns, dim=1)
    best = best.gather(1, by_index)
    best, by_score = torch.sort(best, dim=1, descending=True, stable=True)
    return columns.gather(1, by_score) + first, best


def _first_of_the_tied(scores: Tensor, last: Tensor, k: int) -> Tensor:
    """Columns of the `k` best of each row, the smaller one first where scores are equal.

    Args:
        scores: `[R, I]`.
        last: The score of the last place, `[R, 1]`.
        k: Columns wanted.
    """
    rows, columns = (scores >= last).nonzero(as_tuple=True)
    # The better ones come first and the order of columns is kept: stable sorts, last key first.
    equal = scores[rows, columns] == last[rows, 0]
    order = torch.argsort(rows * 2 + equal, stable=True)
    rows, columns = rows[order], columns[order]
    starts = torch.searchsorted(rows, torch.arange(len(scores), device=rows.device))
    return columns[starts[:, None] + torch.arange(k, device=rows.device)]
