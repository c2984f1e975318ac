"""Turns command-line options into an ingest mapping, on top of a mapping file if there is one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from tasks.config_file import load_yaml
from tasks.errors import ConfigError
from tasks.ingest.mapping import LISTED, NUMERIC, Comparison, IngestMapping


def build_mapping(file: Path | None, given: Mapping[str, Any]) -> IngestMapping:
    """The mapping file's settings, with those given on the command line in their place.

    Args:
        file: YAML file, or None.
        given: Settings by name; entries that are None or empty count as not given. `map` and the
            tables `items` and `users` add to the file's.

    Raises:
        ConfigError: Names the option, or the file's line and key.
    """
    base = load_yaml(file, IngestMapping) if file else IngestMapping()
    settings = _merged(base.model_dump(exclude_unset=True), given)
    try:
        return IngestMapping.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "command line"
        raise ConfigError(
            first["msg"].removeprefix("Value error, "),
            where=f"--{key.replace('_', '-')}",
            fix="see tailtower ingest --help",
        ) from error


def _merged(base: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in given.items():
        if value is None or value == () or value == {}:
            continue
        old = merged.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            merged[name] = _merged(old, value)
        elif name == "filters" and old:
            merged[name] = (*old, *value)
        else:
            merged[name] = value
    return merged


def pairs(entries: Sequence[str], option: str) -> dict[str, str]:
    """`NAME=VALUE` entries of an option."""
    result = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator or not name.strip() or not value:
            raise ConfigError(
                f"not NAME=VALUE: '{entry}'",
                where=option,
                fix=f"write for example {option} user_id=CustomerID",
            )
        result[name.strip()] = value
    return result


def drop_rules(entries: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Drop rules written as `name: column comparison value`.

    For example `cancelled: InvoiceNo starts_with C` or `returned: Quantity at_most 0`.
    """
    rules = []
    for entry in entries:
        name, _, rest = entry.partition(":")
        words = rest.split(maxsplit=2)
        known = get_args(Comparison)
        if len(words) < 2 or not name.strip():
            raise ConfigError(
                f"not a rule: '{entry}'",
                where="--drop",
                fix='write "name: column comparison value", such as "returned: Quantity at_most 0"',
            )
        column, comparison = words[:2]
        if comparison not in known:
            near = difflib.get_close_matches(comparison, known, n=1, cutoff=0.4)
            raise ConfigError(
                f"unknown comparison '{comparison}'",
                where=f"--drop '{entry}'",
                fix=f"did you mean '{near[0]}'?" if near else f"one of: {', '.join(known)}",
            )
        rules.append(
            {
                "name": name.strip(),
                "column": column,
                "drop_if": comparison,
                "value": _value(comparison, words[2] if len(words) > 2 else None, entry),
            }
        )
    return tuple(rules)


def _value(comparison: str, text: str | None, entry: str) -> str | float | tuple[str, ...] | None:
    if text is None or comparison == "missing":
        return text
    if comparison in LISTED:
        return tuple(word.strip() for word in text.split(","))
    if comparison in NUMERIC:
        try:
            return float(text)
        except ValueError as error:
            raise ConfigError(
                f"'{comparison}' takes a number, not '{text}'",
                where=f"--drop '{entry}'",
                fix="give a number, or compare with equals",
            ) from error
    return text
