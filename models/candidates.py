"""The columns of a loss: the items of a micro-batch and its negatives, each item once.

An item that was drawn several times has one vector. One column stands for all its draws and counts
for their sum, which is the same loss at a fraction of the work: with long-tailed items a batch has
about half as many different items as examples.
"""

from __future__ import annotations

from collections.abc import Sequence
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
            user's negatives, as is every draw of the own item. Each has B rows.
    """

    column: Tensor
    log_weight: Tensor
    known: Sequence[Jagged] = ()

    def left_out(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Draws that were left out because they repeat a user's own item, or hold a known one.

        A draw counts twice where `known` names it twice.
        """
        draws = candidates.draws
        repeats = (draws.index_select(0, self.column) - 1).sum()
        known = torch.zeros_like(repeats)
        for columns in self.known:
            known = known + draws.index_select(0, columns.values).sum()
        return repeats, known


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
) -> tuple[Jagged, Jagged]:
    """Columns that hold items which users are known to like besides their own.

    Args:
        distinct: What has just found the different items, in the order of the columns.
        history: Corpus indices, one row for each of this rank's B examples.
        user: Index of the user of each of the pool's examples, int64 `[A]`.
        item: Corpus index of the item of each of the pool's examples, int64 `[A]`.
        own: Places of this rank's examples among them, int64 `[B]`.

    Returns:
        Of the items of the user's history, and of those of the user's other examples: B rows of
        columns each; the own item is in none. What a history repeats stands there repeatedly.
    """
    target = item.index_select(0, own)

    def present(rows: Tensor, items: Tensor) -> Jagged:
        columns = distinct.find(items)
        found = (columns >= 0) & (items != target.index_select(0, rows))
        found = found.nonzero().flatten()
        rows = rows.index_select(0, found)
        offsets = torch.zeros(len(own) + 1, dtype=torch.int64, device=item.device)
        torch.cumsum(torch.bincount(rows, minlength=len(own)), 0, out=offsets[1:])
        return Jagged(columns.index_select(0, found), offsets)

    return (
        present(history.row_ids(), history.values),
        present(*_of_same_user(user, item, own)),
    )


def _of_same_user(user: Tensor, item: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's examples, and each different item of the examples of the same user."""
    width = int(item.max()) + 1 if item.numel() else 1
    pairs = torch.unique(user * width + item)
    users = pairs.div(width, rounding_mode="floor")
    mine = user[own]
    first = torch.searchsorted(users, mine)
    size = torch.searchsorted(users, mine, right=True) - first
    rows = torch.repeat_interleave(torch.arange(len(own), device=user.device), size)
    before = torch.repeat_interleave(size.cumsum(0) - size, size)
    place = torch.arange(rows.numel(), device=user.device) - before
    return rows, (pairs - users * width).index_select(0, first.index_select(0, rows) + place)
