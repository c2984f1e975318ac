"""The columns of a loss: the items of a micro-batch and its negatives, each item once.

An item that was drawn several times has one vector. One column stands for all its draws and counts
for their sum, which is the same loss at a fraction of the work: with long-tailed items a batch has
about half as many different items as examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.distinct import Distinct
from models.jagged import Jagged


@dataclass(frozen=True)
class Candidates:
    """The items that every user of a batch is scored against.

    Attributes:
        item: Corpus index of each column, int64 `[C]`; all are different.
        log_weight: Log of the sum of the weights of the column's draws, `[C]`. The weight of a
            draw is `q ** -alpha`, or 1 without correction, where q is the probability that a
            draw of its kind gives this item.
        draws: Draws that each column stands for, int64 `[C]`.
        total: Number of all draws.
    """

    item: Tensor
    log_weight: Tensor
    draws: Tensor
    total: int


@dataclass(frozen=True)
class Positives:
    """What a user's own item, and others that they are known to like, are among the columns.

    Attributes:
        column: Column of each user's own item, int64 `[B]`.
        log_weight: Log of the weight of the one draw that is the user's own, `[B]`.
        known: Columns of other items that each user is known to like; they are left out of the
            user's negatives, as is every draw of the own item. B rows, or None for none.
    """

    column: Tensor
    log_weight: Tensor
    known: Jagged | None = None

    def left_out(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Draws that were left out because they repeat a user's own item, or hold a known one."""
        repeats = (candidates.draws[self.column] - 1).sum()
        if self.known is None:
            return repeats, torch.zeros_like(repeats)
        return repeats, candidates.draws[self.known.values].sum()


def merge_draws(distinct: Distinct, item: Tensor, log_weight: Tensor) -> tuple[Candidates, Tensor]:
    """Makes one column of all draws of an item.

    Args:
        distinct: Finds the different items.
        item: Corpus index of each draw, int64 `[N]`.
        log_weight: Log of the weight of each draw, `[N]`.

    Returns:
        The candidates, and the column of each draw, int64 `[N]`.
    """
    items, column = distinct(item)
    # Weights of the rarest items reach 1e18 (alpha 2): their sum is formed in float64.
    weight = torch.zeros(len(items), dtype=torch.float64, device=item.device)
    weight.index_add_(0, column, log_weight.double().exp())
    draws = torch.zeros_like(items).index_add_(0, column, torch.ones_like(column))
    return Candidates(items, weight.log().to(log_weight.dtype), draws, item.numel()), column


def known_columns(
    distinct: Distinct, history: Jagged, user: Tensor, item: Tensor, own: Tensor
) -> Jagged:
    """Columns that hold items which users are known to like besides their own.

    Known are the items of the user's history and the items of the user's other examples in the
    pool.

    Args:
        distinct: What has just found the different items, in the order of the columns.
        history: Corpus indices, one row for each of this rank's B examples.
        user: Index of the user of each of the pool's examples, int64 `[A]`.
        item: Corpus index of the item of each of the pool's examples, int64 `[A]`.
        own: Places of this rank's examples among them, int64 `[B]`.

    Returns:
        B rows of columns, ascending and without repetition; the own item is in none.
    """
    rows, others = _same_user(user, own)
    rows = torch.cat([history.row_ids(), rows])
    items = torch.cat([history.values, item[others]])
    columns = distinct.find(items)
    found = (columns >= 0) & (items != item[own][rows])
    width = max(distinct.count, 1)
    pairs = torch.unique(rows[found] * width + columns[found])
    rows = pairs.div(width, rounding_mode="floor")
    offsets = torch.zeros(len(history) + 1, dtype=torch.int64, device=item.device)
    torch.cumsum(torch.bincount(rows, minlength=len(history)), 0, out=offsets[1:])
    return Jagged(pairs - rows * width, offsets)


def _same_user(user: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of one of this rank's examples and an example of the same user."""
    ordered, order = torch.sort(user, stable=True)
    mine = user[own]
    first = torch.searchsorted(ordered, mine)
    size = torch.searchsorted(ordered, mine, right=True) - first
    rows = torch.repeat_interleave(torch.arange(len(own), device=user.device), size)
    before = torch.repeat_interleave(size.cumsum(0) - size, size)
    place = torch.arange(rows.numel(), device=user.device) - before
    return rows, order[first[rows] + place]
