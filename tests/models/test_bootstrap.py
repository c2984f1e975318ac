"""Protects the comparison: interval, p-value, seed, and what happens to missing users."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from models.bootstrap import paired_bootstrap


def test_interval_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(400), rng.random(400) - 0.02
    found = paired_bootstrap(a, b, samples=4000, seed=1)
    other = scipy.stats.bootstrap(
        (a - b,), np.mean, n_resamples=4000, method="percentile", rng=2
    ).confidence_interval
    assert found.difference == pytest.approx(float((a - b).mean()))
    # Two sets of 4000 resamples: the quantiles' own error is about 0.001.
    assert found.lower == pytest.approx(other.low, abs=0.003)
    assert found.upper == pytest.approx(other.high, abs=0.003)


def test_paired_is_narrower_than_unpaired() -> None:
    rng = np.random.default_rng(0)
    user = rng.random(500)
    better = user + 0.01 + rng.normal(0, 0.02, 500)
    found = paired_bootstrap(better, user)
    assert found.lower > 0
    assert found.p_value < 0.01
    # Unpaired, the spread of the users would hide the difference.
    assert found.upper - found.lower < 0.1 * 4 * user.std() / np.sqrt(500)


def test_coverage_of_the_interval() -> None:
    """The true difference lies in 90 % of 90 % intervals."""
    rng = np.random.default_rng(4)
    inside = 0
    for trial in range(200):
        delta = rng.normal(0.3, 1.0, 80)
        found = paired_bootstrap(delta, np.zeros(80), samples=400, confidence=0.9, seed=trial)
        inside += found.lower <= 0.3 <= found.upper
    # Binomial(200, 0.9) has a standard deviation of 4.2.
    assert 164 <= inside <= 194


def test_equal_models_have_p_one_and_seed_decides() -> None:
    values = np.random.default_rng(0).random(50)
    same = paired_bootstrap(values, values)
    assert (same.difference, same.lower, same.upper, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    other = values[::-1].copy()
    assert paired_bootstrap(values, other, seed=3) == paired_bootstrap(values, other, seed=3)
    assert paired_bootstrap(values, other, seed=3) != paired_bootstrap(values, other, seed=4)


def test_users_without_a_value_are_left_out() -> None:
    found = paired_bootstrap([1.0, np.nan, 3.0, 5.0], [0.0, 9.0, 1.0, np.nan])
    assert found.users == 2
    assert found.difference == pytest.approx(1.5)
    with pytest.raises(ValueError, match="no user"):
        paired_bootstrap([np.nan], [1.0])
    with pytest.raises(ValueError, match="same users"):
        paired_bootstrap([1.0], [1.0, 2.0])
