"""Rules that the shipped contracts do not use: metrics, operators, lists, freshness, numbers.

Expected outcomes follow from the few rows written here, counted by hand. All contracts of the
operators are checked in one call.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from data_contracts.arrow_types import type_name
from data_contracts.broken_rules import SCREEN_ROWS, broken_rules, render
from data_contracts.check import DayOfData, check_days
from data_contracts.contract import Contract, load_contract
from data_contracts.data_files import BATCH_ROWS
from data_contracts.footer_checks import check_footers
from data_contracts.partition_checks import FileOfDay, check_files
from data_contracts.result import ContractResult, RuleResult
from data_contracts.type_drift import types_between_days
from tests.data_contracts.days_of_data import BIG, MIDNIGHT, day_of, events, shipped


def contract_of(folder: Path, *properties: dict[str, Any], **schema: Any) -> Contract:
    sla = schema.pop("slaProperties", None)
    content: dict[str, Any] = {
        "apiVersion": "v3.1.0",
        "kind": "DataContract",
        "id": "test",
        "version": "1.0.0",
        "status": "active",
        "schema": [{"name": "test", "properties": list(properties), **schema}],
    }
    if sla:
        content["slaProperties"] = sla
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "test.odcs.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_contract(path)


def _check(folder: Path, contract: Contract, *tables: pa.Table) -> ContractResult:
    return check_days(contract, [day_of(folder / "data", *tables)])[0]


def _broken(result: ContractResult) -> list[tuple[str, str, int, tuple[str, ...]]]:
    return sorted((r.rule, r.found, r.rows, r.sample) for r in result.broken)


def _quality(metric: str, **more: Any) -> dict[str, Any]:
    return {"metric": metric, **more}


def test_library_metrics(tmp_path: Path) -> None:
    contract = contract_of(
        tmp_path,
        {
            "name": "shop",
            "logicalType": "string",
            "quality": [
                _quality("nullValues", unit="percent", mustBeLessThan=20),
                _quality("missingValues", arguments={"missingValues": [None, "", "n/a"]}, mustBe=0),
                _quality("invalidValues", arguments={"validValues": ["a", "b"]}, mustBeLessThan=3),
                _quality(
                    "invalidValues",
                    arguments={"pattern": "^[a-z]$"},
                    unit="percent",
                    mustBeLessThan=5,
                ),
            ],
        },
        {"name": "n", "logicalType": "integer", "unique": True},
        quality=[
            _quality("rowCount", mustBeBetween=[1, 9]),
            _quality("duplicateValues", mustBe=0, arguments={"properties": ["shop", "n"]}),
        ],
    )
    shops = ["a", "b", None, None, "", "n/a", "zz", "a", "b", "a"]
    found = _check(
        tmp_path, contract, pa.table({"shop": shops, "n": [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]})
    )
    assert _broken(found) == [
        ("missing", "4 missing", 4, ("", "n/a")),
        ("nulls", "20 % nulls", 2, ()),
        ("row count", "10 rows", 0, ()),
        ("unique", "1 repeated", 1, ("9",)),
        ("valid values", "3 that do not", 3, ("", "n/a", "zz")),
        ("valid values", "30 % that do not", 3, ("", "n/a", "zz")),
    ]


@pytest.mark.parametrize(
    ("operator", "value", "kept"),
    [
        ("mustBe", 3, True),
        ("mustBe", 2, False),
        ("mustNotBe", 2, True),
        ("mustNotBe", 3, False),
        ("mustBeGreaterThan", 2, True),
        ("mustBeGreaterThan", 3, False),
        ("mustBeGreaterOrEqualTo", 3, True),
        ("mustBeGreaterOrEqualTo", 4, False),
        ("mustBeLessThan", 4, True),
        ("mustBeLessThan", 3, False),
        ("mustBeLessOrEqualTo", 3, True),
        ("mustBeLessOrEqualTo", 2, False),
        ("mustBeBetween", [3, 4], True),
        ("mustBeBetween", [4, 5], False),
        ("mustNotBeBetween", [4, 5], True),
        ("mustNotBeBetween", [2, 3], False),
    ],
)
def test_operators_on_three_rows(operator: str, value: object, kept: bool, tmp_path: Path) -> None:
    contract = contract_of(
        tmp_path,
        {"name": "n", "logicalType": "integer"},
        quality=[_quality("rowCount", **{operator: value})],
    )
    result = _check(tmp_path, contract, pa.table({"n": [1, 2, 3]}))
    assert result.blocked is not kept


def test_numbers_lists_and_times(tmp_path: Path) -> None:
    contract = contract_of(
        tmp_path,
        {
            "name": "n",
            "logicalType": "integer",
            "logicalTypeOptions": {"minimum": 0, "exclusiveMaximum": 3},
        },
        {
            "name": "tags",
            "logicalType": "array",
            "items": {"logicalType": "string", "logicalTypeOptions": {"minLength": 2}},
            "logicalTypeOptions": {"minItems": 1, "maxItems": 2},
        },
        {
            "name": "at",
            "logicalType": "timestamp",
            "logicalTypeOptions": {"minimum": "2026-01-02T00:00:00Z"},
        },
    )
    table = pa.table(
        {
            "n": pa.array([0, -1, 3, None], pa.int64()),
            "tags": pa.array([["ab", "c"], [], ["de", "fg", "hi"], None], pa.list_(pa.string())),
            "at": pa.array([MIDNIGHT, MIDNIGHT - 1, None, MIDNIGHT], pa.timestamp("us", tz="UTC")),
        }
    )
    assert _broken(_check(tmp_path, contract, table)) == [
        ("length", "1 that do not", 1, ("c",)),
        ("list length", "2 that do not", 2, ("0", "3")),
        ("range", "1 that do not", 1, ("2026-01-01 23:59:59",)),
        ("range", "2 that do not", 2, ("-1", "3")),
    ]


@pytest.mark.parametrize(
    ("form", "texts", "bad"),
    [
        ({"unicode": "NFKC"}, ["ﬁn", "fin", None], 1),
        ({"unicode": "NFD"}, ["caf\u00e9", "cafe\u0301"], 1),
        ({"whitespace": "trimmed"}, [" a", "a\u00a0", "a b", ""], 2),
        ({"whitespace": "none"}, [" a", "a b", "ab"], 2),
        ({"invisible": "refused"}, ["a\u200bb", "a\x00b", "é", "ab"], 2),
        ({"invisible": "refused"}, ["a\tb", "ab"], 1),
        ({"case": "lower"}, ["Ab", "ab", "É", "1"], 2),
        ({"case": "upper"}, ["AB", "ab"], 1),
        ({"case": "any", "unicode": "any"}, ["Ab", "cafe\u0301"], 0),
    ],
)
def test_forms_of_texts(
    form: dict[str, str], texts: list[str | None], bad: int, tmp_path: Path
) -> None:
    rule = {"type": "custom", "engine": "tailtower", "severity": "warn"}
    column: dict[str, Any] = {"name": "shop", "logicalType": "string"}
    column |= {"quality": [rule | {"implementation": {"rule": "textForm", **form}}]}
    found = _check(tmp_path, contract_of(tmp_path, column), pa.table({"shop": texts}))
    assert sum(entry.rows for entry in found.broken) == bad


def test_freshness_is_measured_from_the_days_end(tmp_path: Path) -> None:
    level = {"property": "freshness", "value": 6, "unit": "h", "element": "test.timestamp"}
    contract = contract_of(
        tmp_path,
        {"name": "timestamp", "logicalType": "timestamp"},
        slaProperties=[level],
        customProperties=[{"property": "additionalColumns", "value": "allow"}],
    )
    evening = MIDNIGHT + 18 * 3_600_000_000
    assert not _check(tmp_path / "a", contract, events(rows=1, micros=[evening])).broken
    late = _check(tmp_path / "b", contract, events(rows=1, micros=[evening - 1_800_000_000]))
    assert [(r.found, r.severity) for r in late.broken] == [("6.5 h", "warn")]


def test_days_that_share_a_frame_are_told_apart(tmp_path: Path) -> None:
    """Frames of good days are checked together; a fault must still name its own day and file."""
    good = day_of(tmp_path / "good", events())
    weights = pa.array([-1.0] + [1.0] * 39, pa.float32())
    with_weight = day_of(tmp_path / "weighted", events(weight=pa.array([1.0] * 40, pa.float32())))
    bad = day_of(tmp_path / "bad", events(weight=weights))
    results = check_days(shipped("interactions"), [good, with_weight, bad, good])
    assert [result.blocked for result in results] == [False, False, True, False]
    assert _broken(results[2]) == [("range", "1 that do not", 1, ("-1.0",))]


def test_a_rule_looks_at_every_batch_of_a_file(tmp_path: Path) -> None:
    contract = contract_of(
        tmp_path,
        {"name": "n", "logicalType": "integer", "logicalTypeOptions": {"minimum": 0}},
    )
    table = pa.table({"n": [-1] + [0] * BATCH_ROWS + [-2]})
    assert _broken(_check(tmp_path, contract, table)) == [
        ("range", "2 that do not", 2, ("-1", "-2"))
    ]


def test_ids_stay_exact_integers(tmp_path: Path) -> None:
    """Two IDs that are one float are two users, and a null beside them changes nothing."""
    users = pa.array([BIG, BIG + 1, None, BIG + 2])
    contract = contract_of(tmp_path, {"name": "user_id", "logicalType": "integer", "unique": True})
    assert _broken(_check(tmp_path, contract, pa.table({"user_id": users}))) == []


def test_nulls_are_counted_without_statistics_too(tmp_path: Path) -> None:
    contract = contract_of(tmp_path, {"name": "n", "logicalType": "integer", "required": True})
    day = day_of(tmp_path / "data")
    pq.write_table(
        pa.table({"n": [1, None, None]}), tmp_path / "data" / "0.parquet", write_statistics=False
    )
    day = day_of(tmp_path / "data")
    (footer,) = check_footers(contract, day.data).footers
    assert footer.nulls == {}
    (tallies,) = check_files(contract, [FileOfDay(day.data, footer, None)])
    assert isinstance(tallies, dict)
    assert [(tally.count, tally.of) for tally in tallies.values()] == [(2, 3)]


def test_no_day_leaves_out_the_rules_about_days(tmp_path: Path) -> None:
    day = day_of(tmp_path, events(micros=[0] * 40))
    result = check_days(shipped("interactions"), [DayOfData(None, day.data)])[0]
    assert "inside the day" not in {rule.rule for rule in result.rules}
    assert not result.blocked


def test_examples_contract_refuses_a_negative_index(tmp_path: Path) -> None:
    table = pa.table(
        {
            "user": pa.array([0, 1]),
            "item": pa.array([3, 4], pa.int32()),
            "history": pa.array([[], [2, -1]], pa.list_(pa.int32())),
            "timestamp": pa.array([1, 2]),
            "weight": pa.array([1, 1], pa.float32()),
            "country": pa.array([[1], [2]], pa.list_(pa.int32())),
        }
    )
    result = _check(tmp_path, shipped("examples"), table)
    assert _broken(result) == [("range", "1 that do not", 1, ("-1",))]
    assert not _check(tmp_path / "good", shipped("examples"), table.slice(0, 1)).broken


def test_a_type_that_changes_between_days_is_found() -> None:
    types = {
        date(2026, 1, 1): {"user_id": "int64", "item_id": "string"},
        date(2026, 1, 2): {"user_id": "string", "item_id": "string"},
    }
    (found,) = types_between_days(shipped("interactions"), types)
    assert str(found) == "interactions 2026-01-02: type differs between days user_id"
    assert (found.rule.found, found.rule.expected) == ("string", "int64, as on 2026-01-01")
    assert found.rule.severity == "block"


@pytest.mark.parametrize(
    ("data_type", "name"),
    [
        (pa.large_string(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.large_list(pa.int32()), "list<int32>"),
        (pa.float32(), "float32"),
        (pa.date32(), "date32"),
        (pa.timestamp("us", tz="UTC"), "timestamp[us, tz=UTC]"),
    ],
)
def test_type_names_do_not_depend_on_storage(data_type: pa.DataType, name: str) -> None:
    assert type_name(data_type) == name


def test_the_table_fits_a_screen_most_severe_first() -> None:
    rules = tuple(
        RuleResult(rule=f"rule {n}", found="x", expected="y", rows=n, severity="warn")
        for n in range(SCREEN_ROWS + 5)
    )
    block = RuleResult(rule="the worst", found="x", expected="y", rows=1)
    result = ContractResult(
        dataset="d",
        day=None,
        contract_version="1",
        contract_digest="",
        files=1,
        rows=1,
        rules=(*rules, block),
    )
    lines = render(broken_rules([result]), rest="elsewhere").splitlines()
    assert "the worst" in lines[2]
    assert f"rule {SCREEN_ROWS + 4} " in lines[3]
    assert lines[-1] == "… and 6 more: elsewhere"
    assert len(lines) <= SCREEN_ROWS + 4


def test_a_rule_that_many_days_break_is_one_line() -> None:
    def result(day: int, *files: tuple[str, int]) -> ContractResult:
        rules = tuple(
            RuleResult(rule="type", column="n", file=file, found="a", expected="b", rows=rows)
            for file, rows in files
        )
        return ContractResult(
            dataset="d",
            day=date(2026, 1, day),
            contract_version="1",
            contract_digest="",
            files=1,
            rows=1,
            rules=rules,
        )

    merged = broken_rules([result(1, ("x", 3)), result(2, ("y", 5)), result(3, ("z", 1), ("w", 2))])
    assert [(entry.where, entry.rule.file, entry.rule.rows) for entry in merged] == [
        ("d 2026-01-02 and 2 more", "y", 10),
        ("d 2026-01-03", "z", 1),
    ]
