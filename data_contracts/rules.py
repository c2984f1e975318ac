"""What a contract asks of the data, as plain values that every kind of check reads.

Every rule ends in one number, exactly merged over all files of the day, and a bound on it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["block", "warn"]

#: Bounds by the standard's name of the operator, and how a person reads them.
OPERATORS = {
    "mustBe": "{0}",
    "mustNotBe": "not {0}",
    "mustBeGreaterThan": "more than {0}",
    "mustBeGreaterOrEqualTo": "at least {0}",
    "mustBeLessThan": "less than {0}",
    "mustBeLessOrEqualTo": "at most {0}",
    "mustBeBetween": "{0} to {1}",
    "mustNotBeBetween": "not {0} to {1}",
}

_UNITS = {"percent": " %", "times": " times", "hours": " h", "PSI": " PSI"}


@dataclass(frozen=True)
class Bound:
    """An operator of the standard and its one or two numbers."""

    operator: str
    values: tuple[float, ...]
    unit: Literal["rows", "percent", "times", "hours", "PSI", ""] = "rows"

    def __str__(self) -> str:
        numbers = OPERATORS[self.operator].format(*(f"{value:,g}" for value in self.values))
        return numbers + _UNITS.get(self.unit, "")


NONE = Bound("mustBe", (0,))


@dataclass(frozen=True)
class ValueCheck:
    """A condition on each value of a column, checked by Great Expectations on the frame.

    Attributes:
        expectation: Class of `great_expectations.expectations`.
        arguments: Its arguments, without the column.
        view: What of the column is looked at: the values, the lengths of its lists, or the
            elements of its lists.
        applies_to: The check is left out for a column of another type (a text rule for IDs that
            are integers); empty for every type.
    """

    expectation: str
    arguments: dict[str, Any]
    view: Literal["values", "lengths", "elements"] = "values"
    applies_to: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One rule of a contract.

    Attributes:
        key: Names the rule within the contract.
        name: What a person reads.
        measure: How its number comes about; see `partition_checks` and `aggregate_checks`.
        column: Column that it is about; several for a key; empty for the whole data set.
        expected: What a person reads under "expected".
        bound: Bound on the number.
        severity: What breaking it does.
        check: The condition on each value, for the measure `values`.
        settings: Numbers and lists that the measure needs.
    """

    key: str
    name: str
    measure: Literal[
        "nulls",
        "null_elements",
        "missing",
        "values",
        "text_form",
        "not_finite",
        "outside_day",
        "rows",
        "duplicates",
        "trailing",
        "staleness",
        "smallest",
        "largest",
        "distinct",
        "unseen",
        "tail",
        "stability",
    ]
    column: tuple[str, ...]
    expected: str
    bound: Bound = NONE
    severity: Severity = "block"
    check: ValueCheck | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """One column of a contract.

    Attributes:
        types: Allowed types, as names of `arrow_types`.
        may_be_absent: Whether a partition without this column is good.
        personal: Whether its values must not be shown.
    """

    name: str
    types: tuple[str, ...]
    may_be_absent: bool = False
    personal: bool = False


def shown(value: object, *, personal: bool = False) -> str:
    """A value as a table shows it: short, printable, hashed when it is personal."""
    if personal:
        digest = hashlib.blake2b(str(value).encode("utf-8", "surrogatepass"), digest_size=4)
        return f"#{digest.hexdigest()}"
    text = value if isinstance(value, str) else str(value)
    text = repr(text)[1:-1] if not text.isprintable() or text != text.strip() or not text else text
    return text if len(text) <= 40 else f"{text[:30]}… ({len(text):,} characters)"
