"""What an item's recent popularity adds to its score when items are recommended.

A softmax without correction learns `log p(item | user) / q(item)`, where q is what its negatives
are drawn by: with those of the batch, how much more a user likes an item than everybody does.
Bayes' rule then asks for the item's popularity as a factor, and it should be today's. A logit of
`strength · log share` becomes one more coordinate of the item vectors, and users have a 1 there,
so that retrieval stays an inner product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import ModelSettings


def prior_scores(recent_count: Tensor, model: ModelSettings) -> Tensor:
    """What the prior adds to the score of each item, in the units of the inner product.

    Args:
        recent_count: Interactions of each item, weighted by age, `[I]`.
        model: The model.

    Returns:
        float32 `[I]`; zeros for a model without prior.
    """
    if model.prior is None:
        return torch.zeros(len(recent_count))
    # One interaction more keeps new items in reach.
    count = recent_count.to(torch.float64) + 1.0
    logits = model.prior.strength * (count / count.sum()).log()
    return (logits * model.temperature).to(torch.float32)


def with_prior(items: Tensor, recent_count: Tensor, model: ModelSettings) -> Tensor:
    """Item vectors with the coordinate of the prior.

    Args:
        items: Item vectors `[I, D]`.
        recent_count: Interactions of each item, weighted by age, `[I]`.
        model: The model.

    Returns:
        `[I, D + 1]`; the same vectors for a model without prior.
    """
    if model.prior is None:
        return items
    scores = prior_scores(recent_count, model)
    return torch.cat([items, scores.to(items.dtype)[:, None]], dim=1)


def with_constant(users: Tensor, model: ModelSettings) -> Tensor:
    """User vectors that fit `with_prior`, `[U, D + 1]`; the same for a model without prior."""
    if model.prior is None:
        return users
    return torch.cat([users, users.new_ones(len(users), 1)], dim=1)
