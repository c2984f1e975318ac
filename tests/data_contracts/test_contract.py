"""A contract is read completely or refused, with the file, the line and the key.

Protects people from a rule that is written down and silently not checked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.contract import load_contract
from data_contracts.errors import ContractFileError
from data_contracts.rules import Bound
from tests.data_contracts.days_of_data import CONTRACTS, shipped

GOOD = """\
apiVersion: v3.1.0
kind: DataContract
id: test
version: 2.0.0
status: active
schema:
  - name: clicks
    properties:
      - name: user_id
        logicalType: integer
        required: true
      - name: shop
        logicalType: string
        logicalTypeOptions:
          maxLength: 10
"""


def _load(folder: Path, text: str) -> object:
    path = folder / "clicks.odcs.yaml"
    path.write_text(text)
    return load_contract(path)


@pytest.mark.parametrize("name", ["interactions", "items", "users", "examples"])
def test_shipped_contracts_are_valid_and_named_like_their_files(name: str) -> None:
    assert shipped(name).dataset == name


def test_every_shipped_contract_is_tested() -> None:
    names = {path.name for path in CONTRACTS.glob("*.odcs.yaml")}
    assert names == {f"{n}.odcs.yaml" for n in ("interactions", "items", "users", "examples")}


def test_remarks_do_not_change_the_digest_but_rules_do(tmp_path: Path) -> None:
    digest = _load(tmp_path, GOOD).digest  # type: ignore[attr-defined]
    assert _load(tmp_path, "# a remark\n" + GOOD).digest == digest  # type: ignore[attr-defined]
    changed = GOOD.replace("maxLength: 10", "maxLength: 11")
    assert _load(tmp_path, changed).digest != digest  # type: ignore[attr-defined]


#: What is put in place of a piece of the good contract; the line, and words of the error.
WRONG = {
    "misspelt key of a column": ("required: true", "requried: true", 11, "did you mean 'required'"),
    "misspelt top-level key": (
        "status: active",
        "status: active\nstatsu: x",
        6,
        "did you mean 'status'",
    ),
    "misspelt option": ("maxLength: 10", "maxLenght: 10", 15, "did you mean 'maxLength'"),
    "option of another type": ("maxLength: 10", "minimum: 10", 15, "unknown key 'minimum'"),
    "option that is not checked": ("maxLength: 10", "format: email", 15, "'format' of type string"),
    "unknown logical type": ("logicalType: integer", "logicalType: int", 10, "'int' is not one of"),
    "unknown physical type": (
        "logicalType: integer",
        "physicalType: int46",
        10,
        "did you mean 'int64'",
    ),
    "wrong kind of value": ("required: true", "required: maybe", 11, "is not of type 'boolean'"),
    "key given twice": ("required: true", "required: true\n        required: false", 12, "twice"),
    "another version": ("v3.1.0", "v3.0.2", 1, "use v3.1.0"),
    "not YAML": ("kind: DataContract", "kind: [", 4, "not valid YAML"),
    "missing key": ("id: test\n", "", 1, "key 'id' is missing"),
    "no type": ("logicalType: integer", "description: an id", 9, "the column has no type"),
    "column twice": ("name: shop", "name: user_id", 12, "declared twice"),
    "relationships": (
        "required: true",
        "required: true\n        relationships: [{to: users.user_id}]",
        12,
        "not checked by this version",
    ),
    "SQL rule": (
        "required: true",
        "quality:\n          - {type: sql, query: SELECT 1, mustBe: 1}",
        12,
        "of type sql are not run",
    ),
    "another engine": (
        "required: true",
        "quality:\n          - {type: custom, engine: soda, implementation: x}",
        12,
        "engine soda are not run",
    ),
    "misspelt own rule": (
        "required: true",
        "quality:\n          - {type: custom, engine: tailtower, implementation: finit}",
        12,
        "did you mean 'finite'",
    ),
    "parameter of an own rule": (
        "required: true",
        "quality:\n          - type: custom\n            engine: tailtower\n"
        "            implementation:\n              rule: eventTimesInsideDay\n"
        "              clockSkew: 3",
        16,
        "did you mean 'clockSkewSeconds'",
    ),
    "form that texts do not have": (
        "required: true",
        "quality:\n          - type: custom\n            engine: tailtower\n"
        "            implementation: {rule: textForm, unicode: NFCC}",
        14,
        "did you mean 'NFC'",
    ),
    "no form at all": (
        "required: true",
        "quality:\n          - {type: custom, engine: tailtower, implementation: textForm}",
        12,
        "give one of unicode, whitespace, invisible, case",
    ),
    "unknown severity": (
        "required: true",
        "quality:\n          - {metric: nullValues, mustBe: 0, severity: blok}",
        12,
        "did you mean 'block'",
    ),
    "no bound": (
        "required: true",
        "quality:\n          - {metric: nullValues}",
        12,
        "exactly one of several",
    ),
    "interval the wrong way round": (
        "required: true",
        "quality:\n          - {metric: nullValues, mustBeBetween: [2, 1]}",
        12,
        "the smaller first",
    ),
    "not a regular expression": ("maxLength: 10", "pattern: '('", 15, "not a regular expression"),
    "unknown custom property": (
        "required: true",
        "customProperties:\n          - {property: mayBeAbsnt, value: true}",
        12,
        "did you mean 'mayBeAbsent'",
    ),
    "unknown service level": (
        "schema:",
        "slaProperties:\n  - {property: freshnes, value: 1}\nschema:",
        7,
        "'freshness'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_understood_names_the_line(name: str, tmp_path: Path) -> None:
    old, new, line, words = WRONG[name]
    assert GOOD.count(old) == 1
    with pytest.raises(ContractFileError) as caught:
        _load(tmp_path, GOOD.replace(old, new))
    where = caught.value.where.split(" ")[0]
    assert where == f"{tmp_path}/clicks.odcs.yaml:{line}"
    assert words in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractFileError, match=r"none\.yaml"):
        load_contract(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("operator", "values", "words"),
    [
        ("mustBe", (0,), "0"),
        ("mustNotBe", (1,), "not 1"),
        ("mustBeGreaterThan", (1000,), "more than 1,000"),
        ("mustBeLessOrEqualTo", (2.5,), "at most 2.5"),
        ("mustBeBetween", (1, 2), "1 to 2"),
        ("mustNotBeBetween", (1, 2), "not 1 to 2"),
    ],
)
def test_bounds_read_like_sentences(operator: str, values: tuple[float, ...], words: str) -> None:
    assert str(Bound(operator, values)) == words
    assert str(Bound(operator, values, "percent")) == words + " %"
