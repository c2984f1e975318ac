"""Sampled softmax whose memory does not grow with the square of the batch.

Scores are formed for a chunk of users at a time, and the gradient with respect to both towers'
vectors is formed in the same pass, so nothing of the size of the scores is kept for the backward
pass, and a chunk stays in the processor's cache. Per score there are three products and one
exponential: weights of columns and users are applied to the vectors, not to the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from models.candidates import Candidates, Positives
from models.score_chunks import ScoreChunks, VectorGradients

# exp of ± so much, times weights of up to exp(±44), stays a normal float32.
_SAFE_EXPONENT = 30.0


@dataclass(frozen=True)
class SampledSoftmax:
    """Cross entropy of a user's own item against sampled ones.

    `off` is the cross entropy over the draws. `standard` subtracts `alpha · log q` from every
    logit, the positive's included (Yi et al., "Sampling-bias-corrected neural modeling for large
    corpus item recommendations", RecSys 2019). `corrected` compares the positive, uncorrected,
    with the other draws only, and weighs an example by `1 - P(positive)`, estimated from the
    same draws and not differentiated (Khrylchenko et al., "Correcting the LogQ Correction",
    RecSys 2025, arXiv 2507.09331): the positive is in the sum with certainty, not by chance.

    Args:
        temperature: Divides the inner products.
        unit_length: Whether all vectors have length 1.
        logq: Correction for the sampling probability.
        chunk: Users scored at once; None for as many as the device likes.
    """

    temperature: float
    unit_length: bool
    logq: Literal["off", "standard", "corrected"]
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
        loss: Tensor = _SampledSoftmax.apply(  # type: ignore[no-untyped-call]
            users, items, candidates, positives, weight, self
        )
        return loss

    @property
    def bounded(self) -> bool:
        """Whether the exponential of a score cannot overflow, so that none need be subtracted."""
        return self.unit_length and self.temperature * _SAFE_EXPONENT >= 1.0


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        users: Tensor,
        items: Tensor,
        candidates: Candidates,
        positives: Positives,
        weight: Tensor,
        settings: SampledSoftmax,
    ) -> Tensor:
        scale = 1.0 / settings.temperature
        top = candidates.log_weight.max()
        mass = (candidates.log_weight - top).exp().to(items.dtype)
        total = users.new_zeros(())
        gradients = VectorGradients(users, items, mass, positives, scale)
        for chunk in ScoreChunks(users, items, positives, scale, settings.chunk):
            powers, target = chunk.scores, chunk.target
            example = weight[chunk.part].to(users.dtype)
            highest: Tensor | float = 0.0
            if not settings.bounded:
                highest = powers.amax(1).clamp(min=torch.finfo(powers.dtype).min)
                powers.sub_(highest[:, None])
            powers.exp_()
            log_others = (powers @ mass).log() + (highest + top)
            if settings.logq == "corrected":
                loss, factor = _corrected(log_others, target, candidates.total, example)
                share = factor * (highest + top - log_others).exp()
                # Nothing is left to compare with when every other draw repeats the positive.
                share = share.masked_fill(log_others == -torch.inf, 0.0)
                own = -factor
            else:
                if settings.logq == "standard":
                    target = target + positives.log_weight[chunk.part]
                log_total = torch.logaddexp(log_others, target)
                loss = example * (log_total - target)
                share = example * (highest + top - log_total).exp()
                own = example * torch.expm1(target - log_total)
            total += loss.sum()
            gradients.add(chunk, powers, share, own)
        ctx.save_for_backward(*gradients.total())
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        user_grad, item_grad = ctx.saved_tensors
        return (user_grad * grads[0], item_grad * grads[0], None, None, None, None)


def _corrected(
    log_others: Tensor, target: Tensor, draws: int, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss of each user and its weight, from the log of the weighted sum over the other draws."""
    # The mean of exp(s) / q over the draws estimates the sum of exp(s) over all other items.
    log_rest = log_others - math.log(max(draws - 1, 1))
    uncertain = weight * torch.sigmoid(log_rest - target)
    nothing = log_others == -torch.inf  # every other draw repeats the positive
    margin = torch.where(nothing, 0.0, log_rest - target)
    return uncertain * margin, uncertain
