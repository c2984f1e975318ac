"""The popularity baseline: everybody is shown the items with the most train interactions."""

from __future__ import annotations

import torch
from torch import Tensor


def item_vectors(train_count: Tensor) -> Tensor:
    """Popularity as vectors of width 1, float32 `[I, 1]`.

    With a user vector of 1 the inner product is the train count; equal counts (and counts above
    2²⁴, which float32 rounds) fall back to the order of the corpus, which is by count as well.
    """
    return train_count.to(torch.float32)[:, None]


def user_vectors(num_users: int) -> Tensor:
    """The same vector for every user, float32 `[U, 1]`."""
    return torch.ones(num_users, 1)
