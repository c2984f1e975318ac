"""Top-K retrieval: exact over the whole corpus or some of it, and by an index's candidates."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from models.jagged import Jagged
from models.stored_rows import StoredRows

_SCORES = 1 << 26
"""Scores held at once."""
_MADE_ROWS = 1 << 13
_GROUP = 128
"""Scores of which only the best is looked at first."""


class Rows(Protocol):
    """Rows of numbers that are read in blocks."""

    @property
    def ready(self) -> bool:
        """Whether a run of rows is there as it is, and need not be computed."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """A run of rows `[M, D]`."""


class Candidates(Protocol):
    """What proposes items; see `models.search_index`."""

    def search(self, users: Tensor, k: int, seen: Jagged | None = None) -> Tensor:
        """Corpus indices int64 `[U, K]`, -1 for none, of at least each user's `k` best items."""


def top_k(
    user_vectors: Tensor,
    item_vectors: Tensor | Rows,
    k: int,
    seen: Jagged | None = None,
    *,
    user_block: int = 1024,
    item_block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The `k` items with the largest inner product for each user, by blocked matrix products.

    Equal scores are ordered by item index, so the result does not depend on the block sizes.

    Args:
        user_vectors: `[U, D]`.
        item_vectors: `[I, D]`.
        k: Items wanted for each user.
        seen: Items to leave out, one row for each user.
        user_block: Users scored at once.
        item_block: Items scored at once; both bound the memory. By default as many as the number
            of users allows.

    Returns:
        Item indices int64 `[U, k]` and scores `[U, k]`, best first. Where fewer than `k` items
        are left, the rest is -1 with score -inf.
    """
    indices = torch.full((len(user_vectors), k), -1, dtype=torch.int64)
    scores = torch.full((len(user_vectors), k), -torch.inf, dtype=user_vectors.dtype)
    if len(item_vectors) == 0:
        return indices, scores
    user_block = min(user_block, max(1, len(user_vectors)))
    item_block = item_block or _SCORES // user_block
    for start in range(0, len(user_vectors), user_block):
        users = user_vectors[start : start + user_block]
        stop = start + len(users)
        hidden = None if seen is None else seen.slice(start, stop)
        found = [
            _block_top_k(users, item_vectors, slice(first, first + item_block), k, hidden)
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


def among(
    user_vectors: Tensor,
    item_vectors: StoredRows,
    items: Tensor,
    k: int,
    seen: Jagged | None = None,
) -> tuple[Tensor, Tensor]:
    """The `k` best of some items for each user, exactly.

    Args:
        user_vectors: `[U, D]`.
        item_vectors: `[I, D]`.
        items: Corpus indices of the items that count, ascending, int64 `[N]`.
        k: Items wanted for each user.
        seen: Items to leave out, one row for each user.

    Returns:
        As `top_k`.
    """
    hidden = None if seen is None else places_among(items, seen)
    found, scores = top_k(user_vectors, _Some(item_vectors, items), k, hidden)
    return named(items, found), scores


def places_among(items: Tensor, wanted: Jagged) -> Jagged:
    """Where some items stand among others; those that are not among them are left out.

    Args:
        items: The others, ascending, int64 `[N]`.
        wanted: Rows of items.
    """
    place = torch.searchsorted(items, wanted.values)
    inside = place < len(items)
    inside[inside.clone()] = items[place[inside]] == wanted.values[inside]
    lengths = torch.bincount(wanted.row_ids()[inside], minlength=len(wanted))
    return Jagged(place[inside], torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))


def named(items: Tensor, places: Tensor) -> Tensor:
    """The items at some places among others, -1 where the place is."""
    if not len(items):
        return places
    return torch.where(places < 0, places, items[places.clamp(min=0)])


class _Some:
    """Some rows of others, in blocks."""

    def __init__(self, rows: StoredRows, chosen: Tensor) -> None:
        self._rows = rows
        self._chosen = chosen

    ready = False

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, part: slice) -> Tensor:
        return self._rows.select(self._chosen[part])


def approximate_top_k(
    user_vectors: Tensor,
    item_vectors: StoredRows,
    k: int,
    candidates: Candidates,
    seen: Jagged | None = None,
) -> tuple[Tensor, Tensor]:
    """The `k` best of the candidates for each user; a user with too few is searched exactly.

    Args:
        user_vectors: `[U, D]`.
        item_vectors: `[I, D]`; the scores are products with these.
        k: Items wanted for each user.
        candidates: Proposes items.
        seen: Items to leave out, one row for each user.

    Returns:
        As `top_k`.
    """
    found = candidates.search(user_vectors, k, seen)
    short = (found >= 0).sum(1) < k
    # Equal scores are ordered by item index, as in the exact search.
    found = found.sort(dim=1).values
    vectors = item_vectors.select(found.clamp(min=0).flatten()).view(*found.shape, -1)
    scores = torch.einsum("ukd,ud->uk", vectors, user_vectors)
    scores[found < 0] = -torch.inf
    best, order = torch.sort(scores, dim=1, descending=True, stable=True)
    best, indices = best[:, :k].contiguous(), found.gather(1, order[:, :k])
    if bool(short.any()):
        rows = short.nonzero()[:, 0]
        hidden = None if seen is None else seen.select(rows)
        if best.shape[1] < k:
            missing = k - best.shape[1]
            best = torch.cat([best, best.new_full((len(best), missing), -torch.inf)], dim=1)
            indices = torch.cat([indices, indices.new_full((len(best), missing), -1)], dim=1)
        indices[rows], best[rows] = top_k(user_vectors[rows], item_vectors, k, hidden)
    return indices, best


def _block_top_k(
    users: Tensor, items: Tensor | Rows, block: slice, k: int, seen: Jagged | None
) -> tuple[Tensor, Tensor]:
    """Top `k` of one block of items, ordered by score, then index."""
    scores = _scores(users, items, block)
    first, width = block.start, scores.shape[1]
    if seen is not None:
        rows, columns = seen.row_ids(), seen.values - first
        inside = (columns >= 0) & (columns < width)
        scores[rows[inside], columns[inside]] = -torch.inf
    k = min(k, width)
    # One more than wanted shows whether items tie for the last place; topk picks any of them.
    best, columns = _largest(scores, min(k + 1, width))
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


def _scores(users: Tensor, items: Tensor | Rows, block: slice) -> Tensor:
    """Scores of a block of items, `[U, B]`."""
    if isinstance(items, Tensor) or items.ready:
        return _products(users, items[block])
    stop = min(block.stop, len(items))
    scores = users.new_empty(len(users), stop - block.start)
    # Rows that have to be computed first stay in the processor's cache until they are used.
    for first in range(block.start, stop, _MADE_ROWS):
        part = slice(first, min(first + _MADE_ROWS, stop))
        scores[:, part.start - block.start : part.stop - block.start] = _products(
            users, items[part]
        )
    return scores


def _products(users: Tensor, items: Tensor) -> Tensor:
    """Products of all users with all items, `[U, B]`."""
    if len(users) == 1 and users.device.type == "cpu":
        # One user's is a product with a vector, for which NumPy's BLAS takes half of MKL's time.
        return torch.from_numpy(items.numpy() @ users[0].numpy())[None]
    return users @ items.T


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest scores of each row and their columns, in no certain order among equals.

    Each of the k-th best group maxima stands for a score at least as large, so what is larger lies
    in the groups with the best maxima: a pass over all scores, and a selection among few.
    """
    width = scores.shape[1]
    groups = width // _GROUP
    if groups < 2 * k:
        best, columns = torch.topk(scores, k, dim=1)
        return best, columns
    whole = groups * _GROUP
    highest = scores[:, :whole].view(len(scores), groups, _GROUP).amax(2)
    chosen = torch.topk(highest, k, dim=1, sorted=False).indices
    columns = chosen[:, :, None] * _GROUP + torch.arange(_GROUP, device=scores.device)
    rest = torch.arange(whole, width, device=scores.device).expand(len(scores), -1)
    columns = torch.cat([columns.flatten(1), rest], dim=1)
    best, places = torch.topk(scores.gather(1, columns), k, dim=1)
    return best, columns.gather(1, places)


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
