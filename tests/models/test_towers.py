"""Protects the pooling: each kind equals a loop over the elements, empty rows included."""

from __future__ import annotations

import pytest
import torch

from models.config import EmbeddingTableSettings, FeatureSettings, TowerSettings
from models.jagged import Jagged
from models.towers import AttentionPool, MeanPool, SumPool, Tower, segment_softmax

ROWS = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).double()


def _elements(codes: list[int], hashes: int) -> torch.Tensor:
    return torch.stack([ROWS[codes[i : i + hashes]].sum(0) for i in range(0, len(codes), hashes)])


@pytest.mark.parametrize("hashes", [1, 2])
def test_sum_and_mean_count_elements_not_codes(hashes: int) -> None:
    lists = [[3, 1, 4, 1], [], [5, 0], [2, 6, 5, 3, 5, 8]]
    codes = Jagged.from_lists(lists)
    zero = torch.zeros(4).double()
    sums = [_elements(c, hashes).sum(0) if c else zero for c in lists]
    means = [_elements(c, hashes).mean(0) if c else zero for c in lists]
    torch.testing.assert_close(SumPool()(ROWS, codes), torch.stack(sums))
    torch.testing.assert_close(MeanPool(hashes)(ROWS, codes), torch.stack(means))


@pytest.mark.parametrize("hashes", [1, 2])
@pytest.mark.parametrize("positions", [0, 5])
def test_attention_is_a_softmax_over_each_history(hashes: int, positions: int) -> None:
    lists = [[3, 1, 4, 1], [], [5, 0], [2, 6, 5, 3, 5, 8][: 3 * hashes]]
    pool = AttentionPool(4, hashes, positions).double()
    torch.nn.init.normal_(pool.query)
    expected = []
    for codes in lists:
        if not codes:
            expected.append(torch.zeros(4).double())
            continue
        elements = _elements(codes, hashes)
        scores = elements @ pool.query
        if positions:
            assert pool.recency is not None
            torch.nn.init.normal_(pool.recency)
            pool.recency.data = torch.arange(positions).double() / 3
            ages = torch.arange(len(elements)).flip(0)
            scores = scores + pool.recency[ages]
        expected.append(scores.softmax(0) @ elements)
    torch.testing.assert_close(pool(ROWS, Jagged.from_lists(lists)), torch.stack(expected))


def test_attention_starts_as_a_mean_and_learns() -> None:
    codes = Jagged.from_lists([[1, 2, 3], [4, 5]])
    pool = AttentionPool(4, 1, 3).double()
    pooled = pool(ROWS, codes)
    torch.testing.assert_close(pooled, MeanPool(1)(ROWS, codes))
    pooled[:, 0].sum().backward()
    assert pool.query.grad is not None
    assert pool.recency is not None
    assert pool.recency.grad is not None
    assert float(pool.query.grad.abs().max()) > 0
    assert float(pool.recency.grad.abs().max()) > 0


def test_segment_softmax_of_large_scores() -> None:
    scores = torch.tensor([1000.0, 1000.0, -1000.0, 3.0])
    weights = segment_softmax(scores, torch.tensor([0, 0, 0, 2]), 3)
    assert weights.tolist() == [0.5, 0.5, 0.0, 1.0]


@pytest.mark.parametrize("rows", [[[], []], []])
def test_a_batch_without_any_element_keeps_the_graph(rows: list[list[int]]) -> None:
    table = ROWS.clone().requires_grad_()
    for pool in (SumPool(), MeanPool(1), AttentionPool(4, 1, 0).double()):
        pooled = pool(table, Jagged.from_lists(rows))
        assert pooled.tolist() == [[0.0] * 4] * len(rows)
        pooled.sum().backward()


def test_vectors_have_length_one_or_not() -> None:
    settings = TowerSettings(features=(FeatureSettings(name="a", table="t"),), hidden=())
    tables = {"t": EmbeddingTableSettings(dim=4)}
    codes = {"a": Jagged.from_lists([[1], [2], []])}
    unit = Tower(settings, tables, {"t": 1}, 6, normalise=True).double()
    free = Tower(settings, tables, {"t": 1}, 6, normalise=False).double()
    free.load_state_dict(unit.state_dict())
    torch.testing.assert_close(unit({"t": ROWS}, codes).norm(dim=1), torch.ones(3).double())
    linear = free.mlp[0]
    assert isinstance(linear, torch.nn.Linear)
    torch.testing.assert_close(free({"t": ROWS}, codes)[0], ROWS[1] @ linear.weight.T + linear.bias)


@pytest.mark.parametrize("pooling", ["sum", "mean", "attention"])
def test_lists_of_no_element_and_of_ten_thousand_stand_in_one_batch(pooling: str) -> None:
    """Forward and backward, against a loop over the lists."""
    generator = torch.Generator().manual_seed(1)
    lengths = [0, 10_000, 1, 0, 37, 10_000, 2]
    lists = [torch.randint(1, 9, (n,), generator=generator).tolist() for n in lengths]
    pools = {"sum": SumPool(), "mean": MeanPool(1), "attention": AttentionPool(4, 1, 10_000)}
    pool = pools[pooling].double()
    if isinstance(pool, AttentionPool):
        assert pool.recency is not None
        for parameter in (pool.query, pool.recency):
            torch.nn.init.normal_(parameter, generator=generator)
    weight = torch.randn(len(lists), 4, generator=generator).double()
    found_rows, expected_rows = (ROWS.clone().requires_grad_() for _ in range(2))
    found = pool(found_rows, Jagged.from_lists(lists))
    expected = []
    for codes in lists:
        elements = expected_rows[codes]
        if not codes:
            expected.append(torch.zeros(4).double())
        elif isinstance(pool, AttentionPool):
            assert pool.recency is not None
            scores = elements @ pool.query + pool.recency[: len(codes)].flip(0)
            expected.append(scores.softmax(0) @ elements)
        else:
            expected.append(elements.sum(0) if pooling == "sum" else elements.mean(0))
    torch.testing.assert_close(found, torch.stack(expected))
    (found * weight).sum().backward()
    (torch.stack(expected) * weight).sum().backward()
    torch.testing.assert_close(found_rows.grad, expected_rows.grad)
