"""Protects the losses: value and gradients equal autograd over single draws in float64, and the
corrections do what they promise: the sampled gradient is that of the full softmax on average."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from models.config import LossSettings
from tests.models.losses import TEMPERATURE, Case, make_case, of_product, reference

MODES = ["off", "standard", "corrected"]


def _assert_same(case: Case, tolerance: float = 1e-10) -> None:
    results = []
    for compute in (of_product, reference):
        users = case.users.clone().requires_grad_()
        corpus = case.corpus.clone().requires_grad_()
        loss = compute(replace(case, users=users, corpus=corpus))
        (loss * 3.0).backward()
        results.append((loss.detach(), users.grad, corpus.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("logq", MODES)
@pytest.mark.parametrize("alpha", [1.0, 0.4])
@pytest.mark.parametrize("chunk", [1, 5, None])
@pytest.mark.parametrize("unit_length", [True, False])
def test_softmax_equals_autograd_over_draws(
    logq: str, alpha: float, chunk: int | None, unit_length: bool
) -> None:
    case = make_case(unit_length=unit_length)
    _assert_same(case.with_settings(logq=logq, logq_alpha=alpha, chunk=chunk))


@pytest.mark.parametrize("kind", ["bce", "ccl"])
@pytest.mark.parametrize("logq", ["off", "standard"])
@pytest.mark.parametrize("chunk", [1, 5, None])
def test_pairwise_losses_equal_autograd_over_draws(kind: str, logq: str, chunk: int | None) -> None:
    case = make_case(unit_length=True)
    _assert_same(
        case.with_settings(kind=kind, logq=logq, chunk=chunk, negative_weight=2.5, margin=0.1)
    )


@pytest.mark.parametrize("logq", MODES)
def test_large_scores_and_rare_items_stay_exact(logq: str) -> None:
    """Scores of hundreds, and draws that are a billion times rarer than others."""
    case = make_case()
    case.users *= 40.0
    case.log_q[::3] -= 20.0
    _assert_same(case.with_settings(logq=logq, logq_alpha=2.0), tolerance=1e-8)


@pytest.mark.parametrize("logq", MODES)
def test_float32_keeps_rare_items_of_cosines(logq: str) -> None:
    """The way without a maximum, at its smallest temperature and strongest correction."""
    case = make_case(unit_length=True)
    case.log_q[::3] -= 20.0
    case = case.with_settings(logq=logq, logq_alpha=2.0)
    narrow = replace(
        case,
        **{name: getattr(case, name).float() for name in ("users", "corpus", "log_q", "weight")},
    )
    torch.testing.assert_close(of_product(narrow).double(), reference(case), rtol=1e-5, atol=1e-5)


def _whole_corpus(log_q: float) -> Case:
    """Every item is drawn exactly once; nine users have the nine items, in another order."""
    generator = torch.Generator().manual_seed(5)
    return Case(
        torch.randn(9, 4, generator=generator).double().requires_grad_(),
        torch.randn(9, 4, generator=generator).double(),
        torch.tensor([0, 3, 5, 8, 1, 4, 2, 7, 6]),
        torch.full((9,), log_q).double(),
        torch.ones(9).double(),
        [set()] * 9,
    )


def _full_softmax(case: Case) -> Tensor:
    logits = case.users @ case.corpus.T / TEMPERATURE
    return torch.nn.functional.cross_entropy(logits, case.draws, reduction="sum")


@pytest.mark.parametrize("logq", ["off", "standard"])
def test_all_items_as_negatives_is_the_full_softmax(logq: str) -> None:
    case = _whole_corpus(0.0).with_settings(logq=logq)
    torch.testing.assert_close(of_product(case), _full_softmax(case))


def test_corrected_has_the_gradient_of_the_full_softmax() -> None:
    # Drawing every other item once is drawing with q = 1 / 8: the estimate is then exact.
    case = _whole_corpus(-math.log(8)).with_settings(logq="corrected")
    (expected,) = torch.autograd.grad(_full_softmax(case), case.users)
    (found,) = torch.autograd.grad(of_product(case), case.users)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def _mean_gradient(settings: dict[str, Any], batch: int, repetitions: int) -> tuple[Tensor, Tensor]:
    """Mean gradient of one user over many batches, and the full softmax's.

    The other members of the batch are drawn by popularity, as in-batch negatives are, and as many
    again uniformly, as mixed negatives may be; each draw has the log q of its kind.
    """
    generator = torch.Generator().manual_seed(11)
    corpus = 30
    items = torch.randn(corpus, 4, generator=generator).double()
    user = torch.randn(1, 4, generator=generator).double() * 0.3
    popularity = torch.rand(corpus, generator=generator).double() ** 3 + 0.01
    popularity /= popularity.sum()
    own = 4
    total = torch.zeros(1, 4).double()
    for _ in range(repetitions):
        popular = torch.multinomial(popularity, batch, replacement=True, generator=generator)
        uniform = torch.randint(corpus, (batch,), generator=generator)
        u = user.clone().requires_grad_()
        case = Case(
            u,
            items,
            torch.cat([torch.tensor([own]), popular, uniform]),
            torch.cat(
                [
                    popularity.log()[own : own + 1],
                    popularity.log()[popular],
                    torch.full((batch,), -math.log(corpus)).double(),
                ]
            ),
            torch.ones(1).double(),
            [set()],
            settings=LossSettings.model_validate(settings),
        )
        (gradient,) = torch.autograd.grad(of_product(case), u)
        total += gradient / repetitions
    exact = user.clone().requires_grad_()
    logits = exact @ items.T / TEMPERATURE
    full = torch.nn.functional.cross_entropy(logits, torch.tensor([own]))
    (expected,) = torch.autograd.grad(full, exact)
    return total, expected


def test_corrected_gradient_is_unbiased_where_off_is_not() -> None:
    found, expected = _mean_gradient({"logq": "corrected"}, batch=2000, repetitions=40)
    assert (found - expected).norm() < 0.02 * expected.norm()
    biased, _ = _mean_gradient({"logq": "off"}, batch=2000, repetitions=40)
    assert (biased - expected).norm() > 0.1 * expected.norm()
    # `standard` counts the positive's logit as one more draw: right in the limit but for the
    # probability that a batch holds the positive, which is where `corrected` differs.
    standard, _ = _mean_gradient({"logq": "standard"}, batch=2000, repetitions=40)
    assert (standard - expected).norm() > (found - expected).norm()


@pytest.mark.parametrize("kind", ["softmax", "bce", "ccl"])
@pytest.mark.parametrize("logq", MODES)
def test_a_user_without_any_negative(kind: str, logq: str) -> None:
    """Its negatives have no gradient, and nothing becomes NaN."""
    case = Case(
        torch.tensor([[0.6, 0.8], [1.0, 0.0]]).requires_grad_(),
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        torch.tensor([0, 0, 1]),
        torch.tensor([-1.0, -1.0, -2.0]),
        torch.ones(2),
        [{1}, {1}],
        unit_length=True,
    ).with_settings(kind=kind, logq=logq)
    loss = of_product(case)
    (gradient,) = torch.autograd.grad(loss, case.users)
    assert bool(torch.isfinite(loss))
    if kind == "softmax":
        assert float(loss.detach()) == 0.0
        assert torch.equal(gradient, torch.zeros(2, 2))
    else:
        # Only the positive pulls, along its own vector.
        assert torch.equal(gradient[:, 1], torch.zeros(2))
        assert bool((gradient[:, 0] < 0).all())


def test_zero_weight_takes_an_example_out() -> None:
    case = make_case().with_settings(logq="standard")
    shorter = replace(case, users=case.users[:-1], weight=case.weight[:-1], known=case.known[:-1])
    case.weight[-1] = 0.0
    torch.testing.assert_close(of_product(case), of_product(shorter))
