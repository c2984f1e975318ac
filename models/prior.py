"""What an item's recent popularity adds to its score when items are recommended.

Towers of a few dozen dimensions learn less of the items' popularity than there is, and what they
learn is that of the whole window. A logit of `strength · log recent share + trend · log (recent
share / share)` makes up for both: it becomes one more coordinate of the item vectors, and users
have a 1 there, so that retrieval stays an inner product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import ModelSettings
from models.corpus import Corpus


def prior_scores(corpus: Corpus, model: ModelSettings) -> Tensor:
    """What the prior adds to the score of each item, in the units of the inner product.

    Args:
        corpus: The items.
        model: The model.

    Returns:
        float32 `[I]`; zeros for a model without prior.
    """
    prior = model.prior
    if prior is None:
        return torch.zeros(len(corpus))
    recent, whole = _log_share(corpus.recent_count), _log_share(corpus.train_count)
    logits = prior.strength * recent + prior.trend * (recent - whole)
    return (logits * model.temperature).to(torch.float32)


def with_prior(items: Tensor, corpus: Corpus, model: ModelSettings) -> Tensor:
    """Item vectors with the coordinate of the prior.

    Args:
        items: Item vectors `[I, D]`.
        corpus: The items.
        model: The model.

    Returns:
        `[I, D + 1]`; the same vectors for a model without prior.
    """
    if model.prior is None:
        return items
    return torch.cat([items, prior_scores(corpus, model).to(items.dtype)[:, None]], dim=1)


def with_constant(users: Tensor, model: ModelSettings) -> Tensor:
    """User vectors that fit `with_prior`, `[U, D + 1]`; the same for a model without prior."""
    if model.prior is None:
        return users
    return torch.cat([users, users.new_ones(len(users), 1)], dim=1)


def _log_share(count: Tensor) -> Tensor:
    """Log of each item's share, float64 `[I]`; one interaction more keeps new items in reach."""
    more = count.to(torch.float64) + 1.0
    return (more / more.sum()).log()
