"""Protects the loss: value and gradients equal autograd over materialised float64 logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from models.loss import Candidates, sampled_softmax

Mode = Literal["off", "standard", "corrected"]
TEMPERATURE = 0.3


@dataclass
class Case:
    users: Tensor
    items: Tensor
    candidates: Candidates
    positive: Tensor
    weight: Tensor


def _case(batch: int = 13, columns: int = 21, corpus: int = 9, dim: int = 6) -> Case:
    """Random vectors; the small corpus makes accidental hits certain."""
    generator = torch.Generator().manual_seed(3)
    probability = torch.rand(corpus, generator=generator).double() + 0.1
    item = torch.randint(corpus, (columns,), generator=generator)
    return Case(
        torch.randn(batch, dim, generator=generator).double(),
        torch.randn(columns, dim, generator=generator).double(),
        Candidates(item, (probability / probability.sum()).log()[item]),
        torch.arange(batch) + 2,
        torch.rand(batch, generator=generator).double(),
    )


def _reference(case: Case, mode: Mode, alpha: float) -> Tensor:
    """The same loss user by user, over Python lists of logits."""
    total = torch.zeros(()).double()
    columns = len(case.items)
    for row, own in enumerate(case.positive.tolist()):
        scores = [case.users[row] @ case.items[c] / TEMPERATURE for c in range(columns)]
        others = [
            scores[c] - (alpha * case.candidates.log_q[c] if mode != "off" else 0.0)
            for c in range(columns)
            if case.candidates.item[c] != case.candidates.item[own]
        ]
        if mode == "corrected":
            rest = torch.stack(others).logsumexp(0) - math.log(columns - 1)
            uncertain = 1 - (scores[own].exp() / (scores[own].exp() + rest.exp())).detach()
            loss = uncertain * (rest - scores[own])
        else:
            target = scores[own]
            if mode == "standard":
                target = target - alpha * case.candidates.log_q[own]
            loss = torch.stack([target, *others]).logsumexp(0) - target
        total = total + case.weight[row] * loss
    return total


@pytest.mark.parametrize("mode", ["off", "standard", "corrected"])
@pytest.mark.parametrize("alpha", [1.0, 0.4])
@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_equals_autograd_over_materialised_logits(mode: Mode, alpha: float, chunk: int) -> None:
    case = _case()
    results = []
    for chunked in (True, False):
        users = case.users.clone().requires_grad_()
        items = case.items.clone().requires_grad_()
        inputs = Case(users, items, case.candidates, case.positive, case.weight)
        loss = _chunked(inputs, mode, alpha, chunk) if chunked else _reference(inputs, mode, alpha)
        (loss * 3.0).backward()
        assert users.grad is not None
        assert items.grad is not None
        results.append((loss.detach(), users.grad, items.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def _chunked(case: Case, mode: Mode, alpha: float = 1.0, chunk: int = 4) -> Tensor:
    return sampled_softmax(
        case.users,
        case.items,
        case.candidates,
        case.positive,
        case.weight,
        temperature=TEMPERATURE,
        logq=mode,
        alpha=alpha,
        chunk=chunk,
    )


def _whole_corpus(items: int, log_q: float) -> Case:
    """Every item is a column exactly once."""
    generator = torch.Generator().manual_seed(5)
    return Case(
        torch.randn(7, 4, generator=generator).double().requires_grad_(),
        torch.randn(items, 4, generator=generator).double(),
        Candidates(torch.arange(items), torch.full((items,), log_q).double()),
        torch.tensor([0, 3, 3, 8, 1, 4, 2]),
        torch.ones(7).double(),
    )


def test_all_items_as_columns_is_the_full_softmax() -> None:
    case = _whole_corpus(9, 0.0)
    expected = torch.nn.functional.cross_entropy(
        case.users @ case.items.T / TEMPERATURE, case.positive, reduction="sum"
    )
    for mode in ("off", "standard"):
        torch.testing.assert_close(_chunked(case, mode), expected)


def test_corrected_has_the_gradient_of_the_full_softmax() -> None:
    # Drawing every other item once is drawing with q = 1 / 8: the estimate is then exact.
    case = _whole_corpus(9, -math.log(8))
    logits = case.users @ case.items.T / TEMPERATURE
    full = torch.nn.functional.cross_entropy(logits, case.positive, reduction="sum")
    (expected,) = torch.autograd.grad(full, case.users)
    (found,) = torch.autograd.grad(_chunked(case, "corrected"), case.users)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_standard_is_unbiased_where_off_is_not() -> None:
    """With negatives drawn by popularity, only the correction recovers the full softmax."""
    generator = torch.Generator().manual_seed(11)
    corpus, draws = 30, 20_000
    items = torch.randn(corpus, 4, generator=generator).double()
    user = torch.randn(1, 4, generator=generator).double() * 0.3
    probability = torch.rand(corpus, generator=generator).double() ** 3 + 0.01
    probability /= probability.sum()
    drawn = torch.multinomial(probability, draws, replacement=True, generator=generator)
    item = torch.cat([torch.tensor([4]), drawn])
    logits = (user @ items.T / TEMPERATURE).flatten()
    full = (logits.softmax(0)[:, None] * items).sum(0)  # the softmax's mean item vector

    def mean_vector(mode: Mode) -> Tensor:
        u = user.clone().requires_grad_()
        case = Case(
            u,
            items[item],
            Candidates(item, probability.log()[item]),
            torch.tensor([0]),
            torch.ones(1).double(),
        )
        (gradient,) = torch.autograd.grad(_chunked(case, mode), u)
        return gradient.flatten() * TEMPERATURE + items[4]

    # Accidental hits are masked, so the positive's own mass is missing from both.
    share = logits.softmax(0)[4]
    without = (full - share * items[4]) / (1 - share)
    assert (mean_vector("standard") - without).norm() < 0.05 * without.norm()
    assert (mean_vector("off") - without).norm() > 0.2 * without.norm()


@pytest.mark.parametrize("mode", ["off", "standard", "corrected"])
def test_a_user_without_any_negative_has_no_gradient(mode: Mode) -> None:
    users = torch.randn(2, 3).requires_grad_()
    items = torch.randn(2, 3)
    candidates = Candidates(torch.tensor([5, 5]), torch.tensor([-1.0, -1.0]))
    case = Case(users, items, candidates, torch.tensor([0, 1]), torch.ones(2))
    loss = _chunked(case, mode)
    (gradient,) = torch.autograd.grad(loss, users)
    assert float(loss.detach()) == 0.0
    assert torch.equal(gradient, torch.zeros(2, 3))


def test_zero_weight_takes_an_example_out() -> None:
    case = _case()
    shorter = Case(
        case.users[:-1], case.items, case.candidates, case.positive[:-1], case.weight[:-1]
    )
    case.weight[-1] = 0.0
    torch.testing.assert_close(_chunked(case, "standard"), _chunked(shorter, "standard"))
