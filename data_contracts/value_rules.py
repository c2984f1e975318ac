"""Rules from a column's `logicalTypeOptions`: lengths, patterns, ranges, sizes of lists."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from data_contracts.contract_file import ContractFile
from data_contracts.rules import Column, Rule, ValueCheck

_TEXT = ("string",)
_LENGTHS = {"minLength": "min_value", "maxLength": "max_value"}
_SIZES = {"minItems": "min_value", "maxItems": "max_value"}
_RANGE = {
    "minimum": ("min_value", "strict_min", False, "≥"),
    "exclusiveMinimum": ("min_value", "strict_min", True, ">"),
    "maximum": ("max_value", "strict_max", False, "≤"),
    "exclusiveMaximum": ("max_value", "strict_max", True, "<"),
}
_RANGED = ("integer", "number", "timestamp")
_KNOWN = {
    "string": (*_LENGTHS, "pattern"),
    "array": tuple(_SIZES),
    **{kind: tuple(_RANGE) for kind in _RANGED},
}
_ELEMENT_KEYS = ("logicalType", "physicalType", "logicalTypeOptions", "description", "required")
Place = tuple[str | int, ...]


def value_rules(
    file: ContractFile, entry: dict[str, Any], place: Place, column: Column
) -> list[Rule]:
    """Rules of a column and, for a list column, of its elements.

    Raises:
        ContractFileError: An option is not checked by this version.
    """
    rules = _options(file, entry, place, column, elements=False)
    items = entry.get("items")
    if items:
        inner = (*place, "items")
        for key in items:
            if key not in _ELEMENT_KEYS:
                raise file.error(
                    f"'{key}' of list elements is not checked", (*inner, key), "remove it"
                )
        if items.get("required"):
            names = (column.name,)
            rules.append(Rule("", "required in lists", "null_elements", names, "no nulls in lists"))
        rules += _options(file, items, inner, column, elements=True)
    return rules


def _options(
    file: ContractFile, entry: dict[str, Any], place: Place, column: Column, *, elements: bool
) -> list[Rule]:
    options = entry.get("logicalTypeOptions", {})
    logical = entry.get("logicalType", "string")
    known = _KNOWN.get(logical, ())
    for name in options:
        if name not in known:
            raise file.error(
                f"option '{name}' of type {logical} is not checked by this version",
                (*place, "logicalTypeOptions", name),
                "remove it",
            )
    view: Any = "elements" if elements else "values"
    rules = []
    if logical == "string":
        rules += text_rules(file, options, (*place, "logicalTypeOptions"), column, view=view)
    elif logical == "array" and options:
        arguments = {_SIZES[name]: value for name, value in options.items()}
        expected = _between("length", options.get("minItems"), options.get("maxItems"))
        check = ValueCheck("ExpectColumnValuesToBeBetween", arguments, "lengths")
        rules.append(Rule("", "list length", "values", (column.name,), expected, check=check))
    elif options:
        arguments = {}
        for name, value in options.items():
            argument, strict, is_strict, _ = _RANGE[name]
            arguments[argument] = (
                _micros(file, value, (*place, "logicalTypeOptions", name))
                if logical == "timestamp"
                else value
            )
            arguments[strict] = is_strict
        expected = ", ".join(f"{_RANGE[name][3]} {value}" for name, value in options.items())
        check = ValueCheck("ExpectColumnValuesToBeBetween", arguments, view)
        rules.append(Rule("", "range", "values", (column.name,), expected, check=check))
    return rules


def text_rules(
    file: ContractFile,
    options: dict[str, Any],
    place: Place,
    column: Column,
    *,
    view: Any = "values",
) -> list[Rule]:
    """Length and pattern of a text; left out for a column that holds no text."""
    rules = []
    arguments = {_LENGTHS[name]: options[name] for name in _LENGTHS if name in options}
    if arguments:
        expected = _between("length", options.get("minLength"), options.get("maxLength"))
        check = ValueCheck("ExpectColumnValueLengthsToBeBetween", arguments, view, _TEXT)
        rules.append(Rule("", "length", "values", (column.name,), expected, check=check))
    if "pattern" in options:
        check = pattern_check(file, options["pattern"], (*place, "pattern"), view)
        expected = f"matches {options['pattern']}"
        rules.append(Rule("", "pattern", "values", (column.name,), expected, check=check))
    return rules


def pattern_check(file: ContractFile, pattern: str, place: Place, view: Any) -> ValueCheck:
    """A check that the whole text matches a regular expression.

    Raises:
        ContractFileError: It is no regular expression.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise file.error(f"not a regular expression: {error}", place, "correct it") from error
    return ValueCheck("ExpectColumnValuesToMatchRegex", {"regex": pattern}, view, _TEXT)


def _between(what: str, low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f"{what} {low:,} to {high:,}"
    return f"{what} at least {low:,}" if low is not None else f"{what} at most {high:,}"


def _micros(file: ContractFile, text: str, place: Place) -> int:
    """Microseconds since 1970 of an ISO 8601 time; UTC when it names no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise file.error(
            f"not an ISO 8601 time: '{text}'", place, "write 2026-01-31T00:00:00Z"
        ) from error
    moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond
