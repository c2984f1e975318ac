"""Whether a candidate becomes champion, and why, in one sentence.

Pure: everything that decides is an argument, so every branch can be tested by hand.
"""

from __future__ import annotations

from datetime import date
from typing import Literal

from models.config import Settings
from tasks.config import GateSettings
from tasks.evaluation.comparison import ModelComparison, cutoff

Outcome = Literal["promoted", "proposed", "recorded", "rejected"]


class Check(Settings):
    """One condition of a promotion."""

    name: str
    """What was looked at: `against champion`, `tail recall`, `coverage`, `size`, …"""
    passed: bool
    """Whether it allows a promotion."""
    text: str
    """The numbers, as a part of a sentence."""


class Decision(Settings):
    """What the gate decided."""

    outcome: Outcome
    """`promoted`; `proposed` (a person decides); `recorded` (would be promoted, but promotion is
    switched off); `rejected`."""
    reason: str
    """One sentence with the numbers that decided."""
    checks: tuple[Check, ...]
    """All conditions."""

    @property
    def passed(self) -> bool:
        """Whether every condition holds."""
        return all(check.passed for check in self.checks)


class ServingParity(Settings):
    """Whether the registered model answers as the evaluated one did."""

    users: int
    """Users that were asked for again."""
    different: int
    """Users whose items or scores differ."""


def decide(comparison: ModelComparison, gate: GateSettings, parity: ServingParity) -> Decision:
    """Decides on a candidate.

    Without a champion the baselines alone decide, and the guardrails that compare with the
    champion do not apply; a first model that beats the baselines is promoted.

    Args:
        comparison: The candidate against the champion (if there is one) and the baselines.
        gate: The rules.
        parity: Whether the registered model answers as the evaluated one did.
    """
    champion = comparison.model("champion")
    checks = [
        _against(comparison, gate, name)
        for name in gate.against
        if name != "champion" or champion is not None
    ]
    if champion is not None:
        checks += [
            _tail(comparison, gate),
            _coverage(comparison, gate),
            _size(comparison, gate),
            _order(comparison.day, champion.day, gate.allow_older),
        ]
    checks.append(_parity(parity))
    passed = all(check.passed for check in checks)
    outcome = _outcome(passed, gate)
    return Decision(
        outcome=outcome,
        reason=_sentence(outcome, comparison, checks, champion is None),
        checks=tuple(checks),
    )


def _outcome(passed: bool, gate: GateSettings) -> Outcome:
    if not passed:
        return "rejected"
    outcomes: dict[str, Outcome] = {"auto": "promoted", "ask": "proposed", "never": "recorded"}
    return outcomes[gate.promote]


def _sentence(
    outcome: Outcome, comparison: ModelComparison, checks: list[Check], first: bool
) -> str:
    value = comparison.candidate.metrics.get(comparison.metric)
    shown = "unknown" if value is None else f"{value:.4f}"
    subject = f"the candidate of {comparison.day} ({comparison.metric} {shown})"
    if outcome == "rejected":
        reasons = "; ".join(check.text for check in checks if not check.passed)
        return f"Rejected: {subject} does not pass: {reasons}."
    start = {
        "promoted": "Promoted",
        "proposed": "Proposed for approval",
        "recorded": "Not promoted because gate.promote is never, although it passes",
    }[outcome]
    alone = " is the first model, there is no champion to beat" if first else " passes"
    return f"{start}: {subject}{alone}: " + "; ".join(check.text for check in checks) + "."


def _against(comparison: ModelComparison, gate: GateSettings, other: str) -> Check:
    name = f"against {other}"
    found = comparison.differences.get(other, {}).get(comparison.metric)
    if found is None:
        text = f"{comparison.metric} could not be compared with {other}: no test user has both"
        return Check(name=name, passed=False, text=text)
    # A margin below 0 forgives a small loss against yesterday's model, never against a baseline.
    bound = gate.margin if other == "champion" else max(gate.margin, 0.0)
    passed = found.lower > bound
    clears = "clears" if passed else "does not clear"
    text = (
        f"{found.difference:+.4f} against {other} ({found.other:.4f}), whose lower bound "
        f"{found.lower:+.4f} {clears} {bound:+.4f}"
    )
    return Check(name=name, passed=passed, text=text)


def _tail(comparison: ModelComparison, gate: GateSettings) -> Check:
    metric = f"recall_at_{cutoff(comparison.metric)}/tail"
    check = _ratio("tail recall", comparison, metric, gate.min_tail_ratio)
    found = comparison.differences.get("champion", {}).get(metric)
    if check.passed or found is None or found.verdict == "worse":
        return check
    # Few targets lie in the tail: a ratio of two handfuls of hits is no evidence of a loss.
    text = f"{check.text}, which may be chance ([{found.lower:+.4f}, {found.upper:+.4f}])"
    return Check(name=check.name, passed=True, text=text)


def _coverage(comparison: ModelComparison, gate: GateSettings) -> Check:
    metric = f"coverage_at_{cutoff(comparison.metric)}"
    return _ratio("coverage", comparison, metric, gate.min_coverage_ratio)


def _ratio(name: str, comparison: ModelComparison, metric: str, least: float) -> Check:
    champion = comparison.model("champion")
    before = champion.metrics.get(metric, 0.0) if champion else 0.0
    now = comparison.candidate.metrics.get(metric, 0.0)
    if before <= 0:
        # No ratio to 0; a champion without a hit in the tail cannot be undercut.
        return Check(name=name, passed=True, text=f"{name} {now:.4f} (champion: 0)")
    ratio = now / before
    passed = ratio >= least
    relation = "at least" if passed else "below"
    text = f"{name} {now:.4f} is {ratio:.2f} of the champion's {before:.4f}, {relation} {least:.2f}"
    return Check(name=name, passed=passed, text=text)


def _size(comparison: ModelComparison, gate: GateSettings) -> Check:
    champion = comparison.model("champion")
    before = champion.parameters if champion else 0
    now = comparison.candidate.parameters
    if before <= 0:
        return Check(name="size", passed=True, text=f"{now:,} parameters (champion: 0)")
    ratio = now / before
    passed = ratio <= gate.max_size_ratio
    relation = "at most" if passed else "above"
    text = (
        f"{now:,} parameters are {ratio:.2f} of the champion's {before:,}, "
        f"{relation} {gate.max_size_ratio:.2f}"
    )
    return Check(name="size", passed=passed, text=text)


def _order(day: date, champion_day: date, allow_older: bool) -> Check:
    newer = day >= champion_day
    if newer:
        text = f"day {day} is not before the champion's {champion_day}"
    elif allow_older:
        text = f"day {day} is before the champion's {champion_day}, which was allowed"
    else:
        text = f"day {day} is before the champion's {champion_day}: the order of days is kept"
    return Check(name="order", passed=newer or allow_older, text=text)


def _parity(parity: ServingParity) -> Check:
    if parity.different:
        text = (
            f"the registered model answers {parity.different} of {parity.users} users "
            "otherwise than it was evaluated"
        )
    else:
        text = f"the registered model answers {parity.users} of {parity.users} users as evaluated"
    return Check(name="serving parity", passed=parity.different == 0, text=text)
