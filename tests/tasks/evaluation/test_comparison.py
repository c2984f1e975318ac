"""Protects: differences are over the same users, intervals say what they say, and a reader sees
the deciding metric first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.bootstrap import paired_bootstrap
from tasks.errors import ConfigError
from tasks.evaluation.comparison import (
    ModelComparison,
    cutoff,
    headline_metrics,
    paired_differences,
    unpaired_differences,
)
from tests.tasks.evaluation.samples import comparison, difference

OPTIONS: dict[str, Any] = {"samples": 400, "confidence": 0.95}


def test_a_paired_difference_leaves_out_users_without_both_values() -> None:
    ours = {"recall_at_5": np.array([1.0, 0.5, np.nan, 0.0])}
    theirs = {"recall_at_5": np.array([0.5, 0.5, 1.0, np.nan])}
    found = paired_differences(ours, theirs, ["recall_at_5", "absent"], **OPTIONS)
    assert list(found) == ["recall_at_5"]
    got = found["recall_at_5"]
    assert (got.candidate, got.other, got.difference, got.users) == (0.75, 0.5, 0.25, 2)


def test_a_metric_that_applies_to_nobody_is_left_out() -> None:
    values = {"recall_at_5/new": np.array([np.nan, np.nan])}
    assert paired_differences(values, values, ["recall_at_5/new"], **OPTIONS) == {}
    assert unpaired_differences(values, values, ["recall_at_5/new"], **OPTIONS) == {}


def test_all_metrics_share_the_resamples_of_the_users() -> None:
    """Against a loop over the resamples, in the order in which they are drawn."""
    rng = np.random.default_rng(3)
    full, part = rng.normal(0.1, 1, 40), rng.normal(0, 1, 40)
    part[rng.random(40) < 0.6] = np.nan
    zero = np.zeros(40)
    found = paired_differences(
        {"recall_at_5": full, "recall_at_5/tail": part},
        {"recall_at_5": zero, "recall_at_5/tail": zero},
        ["recall_at_5", "recall_at_5/tail"],
        samples=300,
        confidence=0.9,
        seed=5,
    )
    draws = np.random.default_rng(5).integers(0, 40, (300, 40))
    for name, values in (("recall_at_5", full), ("recall_at_5/tail", part)):
        means = np.array([np.nanmean(values[draw]) for draw in draws])
        got = found[name]
        assert got.difference == pytest.approx(np.nanmean(values))
        expected = np.quantile(means, [0.05, 0.95])
        assert (got.lower, got.upper) == pytest.approx(tuple(expected))
        smaller = min((means <= 0).sum(), (means >= 0).sum())
        assert got.p_value == pytest.approx(min(1.0, 2 * (smaller + 1) / 301))
    alone = paired_bootstrap(full, zero, samples=300, confidence=0.9, seed=5)
    got = found["recall_at_5"]
    assert (got.lower, got.upper, got.p_value) == pytest.approx(
        (alone.lower, alone.upper, alone.p_value)
    )


def test_pairing_narrows_the_interval_where_users_agree() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(300)  # how hard a user is: common to both models
    ours = {"recall_at_5": hard + 0.02 + rng.normal(0, 0.01, 300)}
    theirs = {"recall_at_5": hard}
    paired = paired_differences(ours, theirs, ["recall_at_5"], **OPTIONS)["recall_at_5"]
    apart = unpaired_differences(ours, theirs, ["recall_at_5"], **OPTIONS)["recall_at_5"]
    assert paired.difference == pytest.approx(apart.difference)
    assert paired.verdict == "better"
    assert apart.verdict == "unclear"
    # The width of the unpaired interval is that of a difference of two independent means.
    spread = np.sqrt(2 * hard.var() / 300)
    assert apart.upper - apart.lower == pytest.approx(2 * 1.96 * spread, rel=0.2)


def test_unpaired_models_may_have_different_numbers_of_users() -> None:
    found = unpaired_differences(
        {"recall_at_5": np.full(10, 0.4)},
        {"recall_at_5": np.full(7, 0.1)},
        ["recall_at_5"],
        **OPTIONS,
    )["recall_at_5"]
    assert found.lower == pytest.approx(0.3)
    assert found.upper == pytest.approx(0.3)
    assert found.users == 7


@pytest.mark.parametrize(
    ("lower", "upper", "verdict"),
    [
        (0.01, 0.02, "better"),
        (-0.02, -0.01, "worse"),
        (0.0, 0.1, "unclear"),
        (-0.1, 0.0, "unclear"),
    ],
)
def test_verdict(lower: float, upper: float, verdict: str) -> None:
    assert difference(0.2, 0.2, lower, upper).verdict == verdict


def test_the_deciding_metric_comes_first() -> None:
    known = dict.fromkeys(
        ["ndcg_at_20", "recall_at_20", "recall_at_20/tail", "recall_at_50", "coverage_at_20"], 0.0
    )
    assert headline_metrics("ndcg_at_20", known) == [
        "ndcg_at_20",
        "recall_at_20",
        "recall_at_20/tail",
        "recall_at_50",
        "coverage_at_20",
    ]


def test_cutoff_refuses_what_is_no_metric() -> None:
    assert cutoff("recall_at_20") == 20
    with pytest.raises(ConfigError, match="'accuracy'"):
        cutoff("accuracy")


def test_json_round_trip_keeps_everything() -> None:
    written = comparison(popularity=difference(0.2, 0.1, 0.06, 0.14))
    assert ModelComparison.model_validate_json(written.model_dump_json()) == written
