"""A few values stand for all of a frame only where they tell the whole truth.

Protects against a bad value that nobody looks at: each bad one, at any place and of any kind, is
counted exactly as it is when all values are looked at.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from data_contracts.contract import Contract
from data_contracts.frame_checks import Frame, check_values
from data_contracts.rules import Rule, ValueCheck
from data_contracts.tally import Tally

ROWS = 60
NAN, INF = float("nan"), float("inf")
BETWEEN = ValueCheck("ExpectColumnValuesToBeBetween", {"min_value": 0, "max_value": 9})
LENGTHS = ValueCheck("ExpectColumnValueLengthsToBeBetween", {"min_value": 1, "max_value": 3})
IN_SET = ValueCheck("ExpectColumnValuesToBeInSet", {"value_set": ["a", "b"]})
PATTERN = ValueCheck("ExpectColumnValuesToMatchRegex", {"regex": "^[a-c]+$"})


def _contract(*checks: ValueCheck) -> Contract:
    rules = tuple(
        Rule(f"r{n}", "rule", "values", ("x",), "good", check=check)
        for n, check in enumerate(checks)
    )
    digest = repr(checks)  # names the validations that a process keeps
    return Contract("d", "1", digest, (), rules, None, "d.yaml")


def _counts(contract: Contract, *batches: list[object]) -> list[list[tuple[int, int]]]:
    frames = [
        Frame(
            contract.rules,
            pa.record_batch({"x": pa.array(values)}),
            f"{n}.parquet",
            {rule.key: Tally() for rule in contract.rules},
        )
        for n, values in enumerate(batches)
    ]
    check_values(contract, frames)
    return [[(t.count, t.of) for t in frame.tallies.values()] for frame in frames]


@pytest.mark.parametrize("place", [0, 31, ROWS - 1])
@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (BETWEEN, 5.0, -0.1),
        (BETWEEN, 5.0, 9.5),
        (BETWEEN, 5.0, NAN),
        (BETWEEN, 5.0, INF),
        (BETWEEN, 5, 10),
        (LENGTHS, "ab", ""),
        (LENGTHS, "ab", "éééé"),
        (IN_SET, "a", "c"),
        (PATTERN, "abc", "abd"),
    ],
)
def test_one_bad_value_is_found(check: ValueCheck, good: object, bad: object, place: int) -> None:
    values = [good] * ROWS
    values[place] = bad
    values[(place + 1) % ROWS] = None
    contract = _contract(check)
    assert _counts(contract, [good] * ROWS, values) == [[(0, ROWS)], [(1, ROWS)]]


def test_rules_of_one_column_are_all_looked_at() -> None:
    contract = _contract(LENGTHS, PATTERN)
    assert _counts(contract, ["a", "abcd", "d"]) == [[(1, 3), (2, 3)]]
    assert _counts(contract, ["a", "b", None]) == [[(0, 3), (0, 3)]]


def test_nothing_but_nulls_breaks_nothing() -> None:
    values = pa.nulls(3, pa.float64()).to_pylist()
    assert _counts(_contract(BETWEEN), [*values, 1.0]) == [[(0, 4)]]
