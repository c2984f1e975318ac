"""Rules about how often values occur: distinct values, unseen IDs, the tail, drift of categories.

The days are a few rows written here; every expected number is counted by hand.
"""

from __future__ import annotations

import math
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from data_contracts.check import DayOfData, check_days, counts_of
from data_contracts.contract import Contract
from data_contracts.result import ContractResult
from data_contracts.value_counts import ValueCounts
from tests.data_contracts.days_of_data import DAY, day_of
from tests.data_contracts.test_rules import contract_of


def _rule(rule: str, **settings: object) -> dict[str, Any]:
    implementation = {"rule": rule, **settings}
    return {
        "type": "custom",
        "engine": "tailtower",
        "severity": "warn",
        "implementation": implementation,
    }


def _column(*rules: dict[str, Any], kind: str = "string") -> dict[str, Any]:
    return {"name": "shop", "logicalType": kind, "quality": list(rules)}


def _days(folder: Path, *values: object) -> list[DayOfData]:
    """Days before `DAY`, and `DAY` last, with these shops."""
    days = []
    for n, shops in enumerate(values):
        day = DAY - timedelta(days=len(values) - 1 - n)
        data = day_of(folder / str(day), pa.table({"shop": shops})).data
        days.append(DayOfData(day, data))
    return days


def _found(result: ContractResult) -> list[tuple[str, str]]:
    return [(rule.rule, rule.found) for rule in result.rules]


def test_shares_of_unseen_ids_and_of_the_tail(tmp_path: Path) -> None:
    contract = contract_of(
        tmp_path,
        _column(
            _rule("unseenShare", days=2, minimumDays=2, mustBeLessThan=50),
            _rule("tailShare", days=2, minimumCount=3, mustBeLessOrEqualTo=10),
            _rule("distinctValues", mustBe=4),
        ),
    )
    days = _days(tmp_path, ["z"], ["a", "b"], ["a", None, "c"], ["a", "b", "d", "e", None])
    results = check_days(contract, days)
    # The first two days have too few before them to know what was seen.
    assert [len(result.rules) for result in results] == [2, 2, 3, 3]
    # Today: d and e of four events with a value are new; z is older than two days. Only a occurs
    # three times in the three days: b, d and e are the tail.
    assert _found(results[3]) == [
        ("unseen values", "50 % unseen"),
        ("share of the tail", "75 % in the tail"),
        ("distinct values", "4 distinct values"),
    ]
    assert [rule.passed for rule in results[3].rules] == [False, False, True]
    # The day before: c of a and c is new, and neither occurs three times.
    assert _found(results[2])[:2] == [
        ("unseen values", "50 % unseen"),
        ("share of the tail", "100 % in the tail"),
    ]


def test_counts_that_an_earlier_check_left_are_used(tmp_path: Path) -> None:
    contract = contract_of(
        tmp_path,
        _column(_rule("unseenShare", days=3, minimumDays=1, mustBe=25), kind="integer"),
    )
    before, today = _days(tmp_path, pa.array([2**53 + 1, 7, 7]), pa.array([2**53, 7, 7, 7]))
    folder = tmp_path / "counts"
    check_days(contract, [before], counts_folder=folder)
    assert before.day is not None
    (path,) = counts_of(folder, before.day).values()
    assert pq.read_table(path).sort_by("value").to_pydict() == {
        "value": [7, 2**53 + 1],
        "count": [2, 1],
    }
    counts = {before.day: {"shop": ValueCounts(pafs.LocalFileSystem(), str(path))}}
    (result,) = check_days(contract, [DayOfData(DAY, today.data, earlier=counts)])
    # 2**53 and 2**53 + 1 are one float, but two IDs.
    assert _found(result) == [("unseen values", "25 % unseen")]
    assert not result.broken


def _index(contract: Contract, days: list[DayOfData]) -> float:
    (rule,) = check_days(contract, days)[-1].rules
    return float(rule.found)


def test_population_stability_index(tmp_path: Path) -> None:
    contract = contract_of(
        tmp_path,
        _column(_rule("populationStability", days=2, minimumDays=2, mustBeLessThan=0.1)),
    )
    before = ["a"] * 6 + ["b"] * 4
    same = _days(tmp_path / "same", before, before * 2, before * 3)
    assert _index(contract, same) == pytest.approx(0)
    moved = _days(tmp_path / "moved", before, before * 2, ["a"] * 2 + ["b"] * 8)
    by_hand = (0.2 - 0.6) * math.log(0.2 / 0.6) + (0.8 - 0.4) * math.log(0.8 / 0.4)
    assert _index(contract, moved) == pytest.approx(by_hand, rel=1e-5)
    new = _days(tmp_path / "new", before, before, ["a"] * 6 + ["c"] * 4)
    least = 1e-4
    by_hand = 2 * (0.4 - least) * math.log(0.4 / least)
    assert _index(contract, new) == pytest.approx(by_hand, rel=1e-5)


def test_lists_count_by_element(tmp_path: Path) -> None:
    rule = _rule("distinctValues", mustBe=3)
    column = {"name": "shop", "logicalType": "array", "quality": [rule]}
    (result,) = check_days(
        contract_of(tmp_path, column), _days(tmp_path, pa.array([["a", "b"], [], None, ["b", "c"]]))
    )
    assert not result.broken


def test_range_of_a_column_over_all_files(tmp_path: Path) -> None:
    rules = (_rule("smallestValue", mustBeGreaterOrEqualTo=0), _rule("largestValue", mustBe=9))
    contract = contract_of(tmp_path, _column(*rules, kind="number"))
    tables = [pa.table({"shop": pa.array(v)}) for v in ([3.5, None, 9.0], [float("nan"), -0.5])]
    (result,) = check_days(contract, [day_of(tmp_path / "data", *tables)])
    assert _found(result) == [("smallest value", "-0.5"), ("largest value", "9")]
    assert [rule.passed for rule in result.rules] == [False, True]


def test_a_day_without_a_date_has_no_days_before(tmp_path: Path) -> None:
    contract = contract_of(
        tmp_path,
        _column(_rule("unseenShare", mustBe=0), _rule("distinctValues", mustBe=1)),
    )
    (today,) = _days(tmp_path, ["a"])
    (result,) = check_days(contract, [DayOfData(None, today.data)])
    assert _found(result) == [("distinct values", "1 distinct values")]


def test_a_type_that_changed_between_days_is_left_to_its_own_rule(tmp_path: Path) -> None:
    column = _column(_rule("unseenShare", minimumDays=1, mustBeLessThan=50))
    column["physicalType"] = "string | int64"
    contract = contract_of(tmp_path, column)
    results = check_days(contract, _days(tmp_path, pa.array([1, 2]), pa.array(["1", "2"])))
    assert results[1].day == date(2026, 1, 2)
    assert _found(results[1]) == [("unseen values", "100 % unseen")]
