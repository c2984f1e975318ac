"""Protects: every branch of the gate, each with the numbers that decide it in its sentence."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.config import GateSettings
from tasks.evaluation.comparison import ModelComparison
from tasks.evaluation.decision import ServingParity, decide
from tests.tasks.evaluation.samples import comparison, difference, model

GOOD = ServingParity(users=8, different=0)
CLEARLY_BETTER = difference(0.2, 0.1, 0.06, 0.14)


def _compared(model_changes: dict[str, Any] | None = None, **changes: Any) -> ModelComparison:
    """By default slightly better than the champion and clearly better than popularity."""
    settings: dict[str, Any] = {"recall": 0.19, "day": date(2026, 1, 4), "version": "7"}
    differences = {
        "champion": difference(0.2, 0.19, -0.002, 0.022),
        "popularity": CLEARLY_BETTER,
    }
    differences |= changes
    return comparison(model("champion", **(settings | (model_changes or {}))), **differences)


def _tail_differs(lower: float, upper: float) -> ModelComparison:
    """Half the champion's tail recall, with the interval of that difference."""
    compared = _compared({"metrics": {"recall_at_20/tail": 0.1}})
    champion = dict(compared.differences["champion"])
    champion["recall_at_20/tail"] = difference(0.05, 0.1, lower, upper)
    differences = dict(compared.differences) | {"champion": champion}
    return compared.model_copy(update={"differences": differences})


PASSING = "promoted"
CASES: list[tuple[str, ModelComparison, dict[str, Any], ServingParity, str, list[str]]] = [
    ("as good as the champion", _compared(), {}, GOOD, PASSING, ["-0.0020", "-0.0050", "0.1900"]),
    (
        "worse than the margin allows",
        _compared(champion=difference(0.2, 0.19, -0.006, 0.03)),
        {},
        GOOD,
        "rejected",
        ["champion", "-0.0060", "does not clear -0.0050"],
    ),
    (
        "exactly at the margin does not clear it",
        _compared(champion=difference(0.2, 0.2, -0.005, 0.005)),
        {},
        GOOD,
        "rejected",
        ["-0.0050 does not clear -0.0050"],
    ),
    (
        "a negative margin is no licence against a baseline",
        _compared(popularity=difference(0.2, 0.2, -0.001, 0.03)),
        {},
        GOOD,
        "rejected",
        ["popularity", "-0.0010 does not clear +0.0000"],
    ),
    (
        "a positive margin holds against baselines, too",
        _compared(champion=CLEARLY_BETTER),
        {"margin": 0.07},
        GOOD,
        "rejected",
        ["champion", "popularity", "+0.0600 does not clear +0.0700"],
    ),
    (
        "tail recall fell",
        _compared({"metrics": {"recall_at_20/tail": 0.1}}),
        {},
        GOOD,
        "rejected",
        ["tail recall 0.0500 is 0.50 of the champion's 0.1000, below 0.80"],
    ),
    (
        "tail recall fell for sure",
        _tail_differs(-0.08, -0.02),
        {},
        GOOD,
        "rejected",
        ["tail recall 0.0500 is 0.50 of the champion's 0.1000, below 0.80"],
    ),
    (
        "tail recall fell, perhaps by chance",
        _tail_differs(-0.11, 0.01),
        {},
        GOOD,
        PASSING,
        ["is 0.50 of the champion's 0.1000, below 0.80, which may be chance ([-0.1100, +0.0100])"],
    ),
    (
        "coverage fell",
        _compared({"metrics": {"coverage_at_20": 0.9}}),
        {},
        GOOD,
        "rejected",
        ["coverage 0.4000 is 0.44 of the champion's 0.9000, below 0.50"],
    ),
    (
        "a champion without a tail hit cannot be undercut",
        _compared({"metrics": {"recall_at_20/tail": 0.0}}),
        {},
        GOOD,
        PASSING,
        ["tail recall 0.0500 (champion: 0)"],
    ),
    (
        "too large",
        _compared({"parameters": 400}),
        {},
        GOOD,
        "rejected",
        ["1,000 parameters are 2.50 of the champion's 400, above 2.00"],
    ),
    (
        "an older day",
        _compared({"day": date(2026, 1, 6)}),
        {},
        GOOD,
        "rejected",
        ["day 2026-01-05 is before the champion's 2026-01-06"],
    ),
    (
        "an older day that is allowed",
        _compared({"day": date(2026, 1, 6)}),
        {"allow_older": True},
        GOOD,
        PASSING,
        ["before the champion's 2026-01-06, which was allowed"],
    ),
    (
        "the registered model answers otherwise",
        _compared(),
        {},
        ServingParity(users=8, different=3),
        "rejected",
        ["3 of 8 users otherwise"],
    ),
    ("asking first", _compared(), {"promote": "ask"}, GOOD, "proposed", ["-0.0020"]),
    ("switched off", _compared(), {"promote": "never"}, GOOD, "recorded", ["never", "-0.0020"]),
    (
        "asking does not save a bad candidate",
        _compared({"parameters": 400}),
        {"promote": "ask"},
        GOOD,
        "rejected",
        ["above 2.00"],
    ),
    (
        "the first model needs the baselines only",
        comparison(popularity=CLEARLY_BETTER),
        {},
        GOOD,
        PASSING,
        ["first model", "no champion", "popularity (0.1000)", "+0.0600"],
    ),
    (
        "a first model that loses to popularity",
        comparison(popularity=difference(0.2, 0.25, -0.09, -0.01)),
        {},
        GOOD,
        "rejected",
        ["popularity (0.2500)", "-0.0900"],
    ),
    (
        "a first model without any baseline to beat",
        comparison(popularity=CLEARLY_BETTER),
        {"against": ["champion"]},
        GOOD,
        PASSING,
        ["first model"],
    ),
    (
        "a baseline that could not be compared",
        comparison(popularity=CLEARLY_BETTER),
        {"against": ["popularity", "traditional"]},
        GOOD,
        "rejected",
        ["could not be compared with traditional"],
    ),
]


@pytest.mark.parametrize(
    ("compared", "settings", "parity", "outcome", "words"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_each_branch(
    compared: ModelComparison,
    settings: dict[str, Any],
    parity: ServingParity,
    outcome: str,
    words: list[str],
) -> None:
    gate = GateSettings.model_validate(settings)
    decision = decide(compared, gate, parity)
    assert decision.outcome == outcome, decision.reason
    assert decision.passed == (outcome != "rejected")
    for word in words:
        assert word in decision.reason
    # One sentence: a full stop at its end and nowhere else but in numbers.
    assert decision.reason.endswith(".")
    assert ". " not in decision.reason


@given(
    lower=st.floats(-0.2, 0.2),
    spread=st.floats(0, 0.2),
    margin=st.floats(-0.1, 0.1),
    tail=st.floats(0, 1),
    parameters=st.integers(1, 5000),
)
def test_the_sentence_names_the_numbers_that_decided(
    lower: float, spread: float, margin: float, tail: float, parameters: int
) -> None:
    compared = _compared({"parameters": parameters, "metrics": {"recall_at_20/tail": tail}})
    against = difference(0.2, 0.2, lower, lower + spread)
    differences = dict(compared.differences) | {"champion": {"recall_at_20": against}}
    compared = compared.model_copy(update={"differences": differences})
    gate = GateSettings(margin=margin)
    decision = decide(compared, gate, GOOD)
    beaten = lower > margin and max(margin, 0) < 0.06
    guarded = (tail == 0 or 0.05 / tail >= 0.8) and 1000 / parameters <= 2
    assert (decision.outcome == "promoted") == (beaten and guarded)
    if not lower > margin:
        assert f"{lower:+.4f}" in decision.reason
        assert f"{margin:+.4f}" in decision.reason
    if 1000 / parameters > 2:
        assert f"{parameters:,}" in decision.reason
    if tail > 0 and 0.05 / tail < 0.8:
        assert f"{tail:.4f}" in decision.reason
