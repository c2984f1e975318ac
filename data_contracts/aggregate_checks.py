"""Checks of a whole day: numbers merged exactly over its files, judged on one small table.

Great Expectations compares every number with its rule's bound. Counts are exact, whatever the
number of files or batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from data_contracts.contract import Contract
from data_contracts.footer_checks import FooterReport
from data_contracts.partition_checks import READING
from data_contracts.result import RuleResult
from data_contracts.rules import Bound, Rule
from data_contracts.tally import Tally
from data_contracts.value_counts import COUNTED

if TYPE_CHECKING:
    from data_contracts.expectations import FrameValidation

_MICROS_PER_HOUR = 3_600_000_000
_EXPECTATIONS: dict[str, tuple[str, bool]] = {
    # operator: which ends of the interval its numbers are, and whether they are outside of it
    "mustBe": ("both", False),
    "mustBeGreaterThan": ("low", True),
    "mustBeGreaterOrEqualTo": ("low", False),
    "mustBeLessThan": ("high", True),
    "mustBeLessOrEqualTo": ("high", False),
    "mustBeBetween": ("both", False),
}


@dataclass
class DayMeasures:
    """Everything measured on one day, before it is judged.

    Attributes:
        day: The day, None for files outside a partition.
        report: The footers.
        tallies: Merged tally of each rule that reads values or footers, by the rule's key.
        trailing: Rows of the days before, for the rules that compare with them.
        counted: Numbers of the rules about value counts, by the rule's key.
    """

    day: date | None
    report: FooterReport
    tallies: dict[str, Tally] = field(default_factory=dict)
    trailing: Mapping[date, int] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)


def judge(contract: Contract, days: Sequence[DayMeasures]) -> list[tuple[RuleResult, ...]]:
    """Judges every rule of every day; the results of each day in the contract's order."""
    numbers = [
        {rule.key: number for rule in contract.rules if (number := _number(rule, d)) is not None}
        for d in days
    ]
    entries = [
        (n, rule) for n, row in enumerate(numbers) for rule in contract.rules if rule.key in row
    ]
    outside = _outside([(rule.bound, numbers[n][rule.key]) for n, rule in entries])
    results: list[list[RuleResult]] = [[] for _ in days]
    for place, (n, rule) in enumerate(entries):
        passed = place not in outside
        results[n].append(_result(rule, days[n], numbers[n][rule.key], passed=passed))
    return [tuple(found) for found in results]


def _outside(numbers: Sequence[tuple[Bound, float]]) -> set[int]:
    """Places of the numbers that are outside of their bound.

    The table has a row for each number and a column for each bound, null where the number has
    another: Great Expectations has a price for every expectation, and most bounds are alike.
    """
    from data_contracts.expectations import Expectation, FrameValidation

    if not numbers:
        return set()
    import pandas as pd

    bounds = list(dict.fromkeys(bound for bound, _ in numbers))
    columns = {bound: f"{n}: {bound}" for n, bound in enumerate(bounds)}
    table = {
        name: pa.array(
            [as_judged(bound, value) if other == bound else None for other, value in numbers],
            pa.float64(),
        )
        for bound, name in columns.items()
    }
    frame = pa.table(table).to_pandas(types_mapper=pd.ArrowDtype)
    sample = 1 << len(numbers).bit_length()  # all of them, in few sizes that can be used again
    key = (sample, *bounds)
    if key not in _validations:
        expectations = [
            Expectation(name, *expectation(bound, name)) for bound, name in columns.items()
        ]
        _validations[key] = FrameValidation(expectations, sample=sample)
    outcomes = _validations[key].run(frame)
    return {row for outcome in outcomes.values() for row in outcome.rows}


_validations: dict[tuple[object, ...], FrameValidation] = {}


def _number(rule: Rule, day: DayMeasures) -> float | None:
    """The number that a rule's bound is about; None when the rule does not apply to the day."""
    if rule.measure in READING or rule.measure == "duplicates":
        tally = day.tallies.get(rule.key)
        if tally is None:
            return None
        if rule.measure == "staleness":
            if tally.high is None or day.day is None:
                return None
            end = datetime.combine(day.day, time(), UTC).timestamp() * 1e6 + 24 * _MICROS_PER_HOUR
            return (end - tally.high) / _MICROS_PER_HOUR
        if rule.measure in ("smallest", "largest"):
            return tally.low if rule.measure == "smallest" else tally.high
        if rule.bound.unit == "percent":
            return 100.0 * tally.count / tally.of if tally.of else 0.0
        return tally.count
    if rule.measure == "rows":
        return day.report.rows
    if rule.measure in COUNTED:
        return day.counted.get(rule.key)
    usual = _usual(rule, day)
    return None if usual is None else day.report.rows / usual


def _usual(rule: Rule, day: DayMeasures) -> float | None:
    """Median of the rows of the days before; None with too few days, or rows, to tell."""
    rows = [count for moment, count in sorted(day.trailing.items())][-rule.settings["days"] :]
    if len(rows) < max(rule.settings["minimumDays"], 1):
        return None
    usual = float(median(rows))
    return usual if usual >= max(rule.settings["minimumRows"], 1) else None


def as_judged(bound: Bound, number: float) -> float:
    """The number as its expectation sees it: 1 inside, 0 outside for `mustNotBeBetween`.

    Great Expectations knows no "outside of an interval".
    """
    if bound.operator != "mustNotBeBetween":
        return number
    low, high = bound.values
    return float(low <= number <= high)


def expectation(bound: Bound, column: str) -> tuple[str, str, dict[str, Any]]:
    """Class, column and arguments of the expectation that holds a bound."""
    operator, values = bound.operator, bound.values
    if operator == "mustNotBe":
        return "ExpectColumnValuesToNotBeInSet", column, {"value_set": list(values)}
    if operator == "mustNotBeBetween":  # of numbers by `as_judged`
        return "ExpectColumnValuesToBeInSet", column, {"value_set": [0.0]}
    ends, strict = _EXPECTATIONS[operator]
    arguments: dict[str, Any] = {}
    if ends in ("low", "both"):
        arguments |= {"min_value": values[0], "strict_min": strict}
    if ends in ("high", "both"):
        arguments |= {"max_value": values[-1], "strict_max": strict}
    return "ExpectColumnValuesToBeBetween", column, arguments


def _result(rule: Rule, day: DayMeasures, number: float, *, passed: bool) -> RuleResult:
    tally = day.tallies.get(rule.key, Tally())
    files = sorted(tally.files)
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return RuleResult(
        key=rule.key,
        number=number,
        rule=rule.name,
        column=", ".join(rule.column),
        file=f"{files[0]}{more}" if files else "",
        found=_found(rule, day, number, tally),
        expected=rule.expected,
        rows=tally.count,
        sample=tuple(tally.samples),
        severity=rule.severity,
        passed=passed,
    )


def _found(rule: Rule, day: DayMeasures, number: float, tally: Tally) -> str:
    words = {
        "nulls": "nulls",
        "null_elements": "nulls in lists",
        "text_form": "in another form",
        "missing": "missing",
        "values": "that do not",
        "not_finite": "NaN or inf",
        "outside_day": "outside",
        "duplicates": "repeated",
        "rows": "rows",
        "distinct": "distinct values",
        "unseen": "unseen",
        "tail": "in the tail",
        "stability": "",
    }
    if rule.measure == "trailing":
        return f"{number:.3g} times: {day.report.rows:,} rows, usually {_usual(rule, day):,.0f}"
    if rule.measure == "staleness":
        return f"{number:.1f} h"
    if rule.measure in ("smallest", "largest", "stability"):
        return f"{number:,.6g}"
    if rule.bound.unit == "percent":
        return f"{number:.3g} % {words[rule.measure]}"
    return f"{number:,.0f} {words[rule.measure]}"
