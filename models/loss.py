"""Sampled softmax whose memory does not grow with the square of the batch.

Logits are formed for a chunk of users at a time, and the gradient with respect to both towers'
vectors is formed in the same pass, so no logits are kept for the backward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """The columns that every user of a micro-batch is scored against.

    Attributes:
        item: Corpus index of each column, int64 `[C]`; columns may repeat an item.
        log_q: Log of the probability that a draw of the column's kind gives this item,
            float `[C]`: its share of the train interactions for an in-batch column, its
            probability under the sampler for a sampled one.
    """

    item: Tensor
    log_q: Tensor


def sampled_softmax(
    users: Tensor,
    items: Tensor,
    candidates: Candidates,
    positive: Tensor,
    weight: Tensor,
    *,
    temperature: float,
    logq: Literal["off", "standard", "corrected"],
    alpha: float = 1.0,
    chunk: int = 1024,
) -> Tensor:
    """Weighted sum of the users' losses.

    `off` is the cross entropy over the columns. `standard` subtracts `alpha · log q` from every
    logit, the positive's included (Yi et al., "Sampling-bias-corrected neural modeling for large
    corpus item recommendations", RecSys 2019). `corrected` compares the positive, uncorrected,
    with the other columns only, and weighs an example by `1 - P(positive)`, estimated from the
    same columns and not differentiated (Khrylchenko et al., "Correcting the LogQ Correction",
    RecSys 2025, arXiv 2507.09331): the positive is in the sum with certainty, not by chance.

    Columns that repeat a user's positive item are left out of that user's sum.

    Args:
        users: User vectors `[B, D]`.
        items: Vectors of the candidates `[C, D]`.
        candidates: What the columns are.
        positive: Column of each user's own item, int64 `[B]`.
        weight: Weight of each example `[B]`.
        temperature: Divides the inner products.
        logq: Correction for the sampling probability.
        alpha: Strength of the correction.
        chunk: Users scored at once; bounds the memory to `chunk · C` logits.

    Returns:
        A scalar.
    """
    shift = None if logq == "off" else candidates.log_q * -alpha
    loss: Tensor = _SampledSoftmax.apply(  # type: ignore[no-untyped-call]
        users,
        items,
        shift,
        candidates.item,
        positive,
        weight,
        1.0 / temperature,
        logq == "corrected",
        chunk,
    )
    return loss


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        users: Tensor,
        items: Tensor,
        shift: Tensor | None,
        column_item: Tensor,
        positive: Tensor,
        weight: Tensor,
        scale: float,
        corrected: bool,
        chunk: int,
    ) -> Tensor:
        total = users.new_zeros(())
        user_grad = torch.empty_like(users)
        item_grad = torch.zeros_like(items)
        bias = items.new_zeros(len(items)) if shift is None else shift.to(items.dtype)
        for start in range(0, len(users), chunk):
            part = slice(start, start + chunk)
            u, own, w = users[part], positive[part], weight[part].to(users.dtype)
            rows = torch.arange(len(u), device=u.device)
            logits = torch.addmm(bias, u, items.T, alpha=scale)
            target = logits[rows, own]
            same = column_item[None, :] == column_item[own][:, None]
            logits.masked_fill_(same, -torch.inf)
            if not corrected:
                logits[rows, own] = target
            # One exponential for the sum and for the gradient alike.
            highest = logits.amax(1).clamp(min=torch.finfo(logits.dtype).min)
            powers = logits.sub_(highest[:, None]).exp_()
            powers_sum = powers.sum(1)
            log_sum = powers_sum.log() + highest
            if corrected:
                loss, factor = _corrected(log_sum, target - bias[own], len(items), w)
            else:
                loss, factor = w * (log_sum - target), w
            # The gradient of a logit is its softmax, less one for the user's own column.
            smallest = torch.finfo(logits.dtype).tiny
            powers.mul_((factor * scale / powers_sum.clamp(min=smallest))[:, None])
            powers[rows, own] -= factor * scale
            total += loss.sum()
            torch.mm(powers, items, out=user_grad[part])
            item_grad.addmm_(powers.T, u)
        ctx.save_for_backward(user_grad, item_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        user_grad, item_grad = ctx.saved_tensors
        return (user_grad * grads[0], item_grad * grads[0], *(None,) * 7)


def _corrected(
    log_sum: Tensor, target: Tensor, columns: int, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss of each user and its weight, from the log of the sum over the other columns."""
    # The mean of exp(s - log q) over the draws estimates the sum of exp(s) over all other items.
    log_rest = log_sum - math.log(max(columns - 1, 1))
    uncertain = torch.sigmoid(log_rest - target)
    nothing = log_sum == -torch.inf  # every other column repeats the positive
    margin = torch.where(nothing, 0.0, log_rest - target)
    return weight * uncertain * margin, weight * uncertain
