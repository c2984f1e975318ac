"""Every change between two contracts is listed with whom it breaks.

Protects those who deliver data from a rule that stops their good deliveries by surprise, and
those who read it from values that the contract had ruled out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.contract import Contract, load_contract
from data_contracts.difference import differences

BASE = """\
apiVersion: v3.1.0
kind: DataContract
id: test
version: 1.0.0
status: active
schema:
  - name: clicks
    customProperties: [{property: additionalColumns, value: warn}]
    properties:
      - name: user
        physicalType: string | int64
        logicalType: string
        required: true
        classification: personal
      - name: shop
        logicalType: string
        logicalTypeOptions: {maxLength: 10}
        quality:
          - {metric: invalidValues, arguments: {validValues: [a, b]}, mustBe: 0}
      - name: price
        logicalType: number
        logicalTypeOptions: {minimum: 0}
    quality:
      - {metric: rowCount, mustBeBetween: [10, 20]}
      - {metric: duplicateValues, arguments: {properties: [user]}, mustBe: 0, severity: warn}
"""


def _contract(folder: Path, text: str) -> Contract:
    path = folder / "clicks.odcs.yaml"
    path.write_text(text)
    return load_contract(path)


CHANGES = {
    "a type fewer": ("string | int64", "string", "type of user", "deliveries"),
    "a type more": ("string | int64", "string | int64 | int32", "type of user", "readers"),
    "another type": ("string | int64", "string | int32", "type of user", "both"),
    "nulls allowed": ("        required: true\n", "", "rule required of user removed", "readers"),
    "no longer personal": (
        "classification: personal",
        "classification: internal",
        "classification of user",
        "nobody",
    ),
    "longer texts": ("maxLength: 10", "maxLength: 11", "rule length of shop", "readers"),
    "shorter texts": ("maxLength: 10", "maxLength: 9", "rule length of shop", "deliveries"),
    "a value more": ("[a, b]", "[a, b, c]", "rule valid values of shop", "readers"),
    "a value fewer": ("[a, b]", "[a]", "rule valid values of shop", "deliveries"),
    "other values": ("[a, b]", "[a, c]", "rule valid values of shop", "both"),
    "above 0 instead of from 0": (
        "minimum: 0",
        "exclusiveMinimum: 0",
        "rule range of price",
        "deliveries",
    ),
    "a wider bound": ("[10, 20]", "[5, 20]", "rule row count", "readers"),
    "a narrower bound": ("[10, 20]", "[10, 19]", "rule row count", "deliveries"),
    "a moved bound": ("[10, 20]", "[11, 21]", "rule row count", "both"),
    "a block that warns": (
        "mustBeBetween: [10, 20]",
        "mustBeBetween: [10, 20], severity: warn",
        "rule row count",
        "readers",
    ),
    "a warning that blocks": (
        "mustBe: 0, severity: warn",
        "mustBe: 0",
        "rule duplicates of user",
        "deliveries",
    ),
    "a stricter warning": (
        "mustBe: 0, severity: warn",
        "mustBeLessThan: 5, severity: warn",
        "rule duplicates of user",
        "nobody",
    ),
    "unknown columns block": ("value: warn", "value: block", "additional columns", "deliveries"),
    "a column that may be absent": (
        "      - name: price\n",
        "      - name: price\n        customProperties: [{property: mayBeAbsent, value: true}]\n",
        "presence of price",
        "readers",
    ),
    "a column more": (
        "      - name: price\n",
        "      - {name: city, logicalType: string}\n      - name: price\n",
        "column city added",
        "deliveries",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_change(name: str, tmp_path: Path) -> None:
    old, new, what, breaks = CHANGES[name]
    assert BASE.count(old) == 1
    before = _contract(tmp_path, BASE)
    after = _contract(tmp_path, BASE.replace(old, new))
    (change,) = differences(before, after)
    assert (change.what, change.breaks) == (what, breaks)
    assert change.old != change.new


def test_a_removed_column_takes_its_rules_along(tmp_path: Path) -> None:
    start = BASE.index("      - name: price")
    end = BASE.index("    quality:\n      - {metric: rowCount")
    before = _contract(tmp_path, BASE)
    after = _contract(tmp_path, BASE[:start] + BASE[end:])
    found = [(change.what, change.breaks) for change in differences(before, after)]
    assert found == [
        ("column price removed", "readers"),
        ("rule range of price removed", "nobody"),
    ]


def test_nothing_differs_but_the_remarks(tmp_path: Path) -> None:
    before = _contract(tmp_path, BASE)
    after = _contract(tmp_path, "# remark\n" + BASE.replace("version: 1.0.0", "version: 1.0.1"))
    assert differences(before, after) == []
