"""Protects the counts of different IDs: grouped cold IDs give what all of them one by one give."""

from __future__ import annotations

import numpy as np
import pytest

from models.zipf import Zipf


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05, 1.5])
@pytest.mark.parametrize("ids", [1, 7, 1000, 60_000])
@pytest.mark.parametrize("draws", [0, 1, 5_000, 400_000])
def test_groups_equal_single_ids(ids: int, exponent: float, draws: int) -> None:
    weight = np.arange(1, ids + 1, dtype=np.float64) ** -exponent
    probability = weight / weight.sum()
    expected = (1 - (1 - probability) ** draws).sum()
    zipf = Zipf(ids, exponent)
    assert zipf.size.sum() == ids
    assert zipf.different(draws) == pytest.approx(expected, rel=0.01, abs=1e-6)


def test_draws_find_as_many_as_expected() -> None:
    random = np.random.default_rng(5)
    weight = np.arange(1, 20_001, dtype=np.float64) ** -1.05
    drawn = random.choice(20_000, 50_000, p=weight / weight.sum())
    assert Zipf(20_000, 1.05).different(50_000) == pytest.approx(np.unique(drawn).size, rel=0.02)


def test_a_billion_ids_are_quick() -> None:
    found = Zipf(1_000_000_000, 1.05)
    assert found.size.sum() == 1_000_000_000
    assert len(found.size) < 4000
    assert 1e5 < found.different(1e6) < 1e6
