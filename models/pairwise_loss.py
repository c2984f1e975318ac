"""Losses that judge each pair of a user and an item by itself, over weighted negatives.

The mean over the negatives weighs each draw by `q ** -alpha` (self-normalised importance
weights), so with correction negatives count as if they were drawn uniformly from the corpus.
Scores are formed chunk by chunk, with their gradient, as in `models/sampled_softmax.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from models.candidates import Candidates, Positives
from models.score_chunks import ScoreChunks, VectorGradients


@dataclass(frozen=True)
class PairwiseLoss:
    """Binary cross entropy, or the cosine contrastive loss.

    `bce`: `-log σ(s⁺) + λ · mean(-log σ(-s⁻))` with scores divided by the temperature.
    `ccl`: `1 - s⁺ + λ · mean(max(0, s⁻ - margin))` with cosines (Mao et al., "SimpleX: A Simple
    and Strong Baseline for Collaborative Filtering", CIKM 2021, equation 3).

    Args:
        kind: Which.
        scale: Factor of all scores.
        negative_weight: λ, the weight of the negatives against the positive.
        margin: Cosine up to which a negative costs nothing.
        chunk: Users scored at once; None for as many as the device likes.
    """

    kind: Literal["bce", "ccl"]
    scale: float
    negative_weight: float
    margin: float
    chunk: int | None = None

    def __call__(
        self,
        users: Tensor,
        items: Tensor,
        candidates: Candidates,
        positives: Positives,
        weight: Tensor,
    ) -> Tensor:
        """Weighted sum of the users' losses; see `models.loss.Loss`."""
        loss: Tensor = _Pairwise.apply(  # type: ignore[no-untyped-call]
            users, items, candidates, positives, weight, self
        )
        return loss

    def of_positive(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of the own item's score, and its derivative."""
        if self.kind == "bce":
            return F.softplus(-score), -torch.sigmoid(-score)
        return 1.0 - score, torch.full_like(score, -1.0)

    def of_negatives(self, scores: Tensor, mass: Tensor) -> Tensor:
        """Weighted sum of the losses of scores `[b, C]`, which become their derivatives."""
        if self.kind == "bce":
            loss = F.softplus(scores) @ mass
            scores.sigmoid_()
            return loss
        loss = scores.sub_(self.margin).relu_() @ mass
        scores.sign_()
        return loss


class _Pairwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        users: Tensor,
        items: Tensor,
        candidates: Candidates,
        positives: Positives,
        weight: Tensor,
        settings: PairwiseLoss,
    ) -> Tensor:
        log_weight = candidates.log_weight
        mass = (log_weight - log_weight.max()).exp().to(items.dtype)
        total = users.new_zeros(())
        gradients = VectorGradients(users, items, mass, positives, settings.scale)
        for chunk in ScoreChunks(users, items, positives, settings.scale, settings.chunk):
            example = weight[chunk.part].to(users.dtype)
            kept = (chunk.scores > -torch.inf).to(users.dtype) @ mass
            # Nothing is kept of a user whose negatives are all left out, and nothing is their mean.
            share = example * settings.negative_weight / kept.masked_fill(kept == 0, 1.0)
            own_loss, own = settings.of_positive(chunk.target)
            negative_loss = settings.of_negatives(chunk.scores, mass)
            total += (example * own_loss + share * negative_loss).sum()
            gradients.add(chunk, chunk.scores, share, example * own)
        ctx.save_for_backward(*gradients.total())
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        user_grad, item_grad = ctx.saved_tensors
        return (user_grad * grads[0], item_grad * grads[0], None, None, None, None)
