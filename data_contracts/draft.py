"""Drafts a contract from data: what is true of it today, for a person to correct.

A draft says what the data shows: types, nulls, ranges, few distinct values, keys. What only seems
so today warns; only types and columns without any null block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from data_contracts import arrow_types, database
from data_contracts.contract_file import API_VERSION
from data_contracts.data_files import DataFiles
from data_contracts.footer_checks import Footer, read_footers

#: A text column with no more values than this, each met many times, is a set of categories.
_CATEGORIES = 20
_TIMES_EACH = 50
#: Columns of a key that is looked for, and the columns that may be part of one.
_KEY_COLUMNS = 3
_KEY_CANDIDATES = 6
_NOTHING = (None, None)


@dataclass
class _Seen:
    """What one column showed."""

    name: str
    type: str
    rows: int = 0
    nulls: int = 0
    low: Any = None
    high: Any = None
    not_finite: int = 0
    null_elements: int = 0
    distinct: int = 0


def draft(name: str, data: DataFiles) -> str:
    """A contract of data that is there, as YAML.

    Args:
        name: Name of the data set.
        data: The files; all are read.

    Raises:
        UnreadableFileError: A file cannot be read.
        ValueError: There is no file with a row.
    """
    footers = [footer for footer in read_footers(data) if footer.rows]
    if not footers:
        raise ValueError("there is no Parquet file with a row")
    types: dict[str, list[str]] = {}
    for footer in footers:
        for column, kind in footer.types.items():
            if kind not in types.setdefault(column, []):
                types[column].append(kind)
    known = [
        column for column, kinds in types.items() if all(arrow_types.is_known(k) for k in kinds)
    ]
    everywhere = [
        column
        for column in known
        if len(types[column]) == 1 and all(column in footer.types for footer in footers)
    ]
    seen = {column: _Seen(column, types[column][0]) for column in everywhere}
    for footer in footers:
        for batch in data.batches(footer.file, everywhere):
            for column in everywhere:
                _look_at(seen[column], batch.column(column))
    properties = []
    for column in known:
        if column in seen:
            properties.append(_property(seen[column], data, footers))
        else:
            absent = any(column not in footer.types for footer in footers)
            properties.append(_types_only(column, types[column], absent))
    schema: dict[str, Any] = {
        "name": name,
        "physicalType": "parquet",
        "customProperties": [{"property": "additionalColumns", "value": "warn"}],
        "properties": properties,
        "quality": [{"metric": "rowCount", "mustBeGreaterThan": 0}],
    }
    key = _key(list(seen.values()), data, footers)
    if key:
        rule = {
            "metric": "duplicateValues",
            "description": "No two of the draft's rows agree.",
        }
        schema["quality"].append(
            rule | {"arguments": {"properties": list(key)}, "mustBe": 0, "severity": "warn"}
        )
    content = {
        "apiVersion": API_VERSION,
        "kind": "DataContract",
        "id": name,
        "name": name,
        "version": "0.1.0",
        "status": "draft",
        "schema": [schema],
    }
    left_out = sorted(set(types) - set(known))
    return _as_text(content, sum(footer.rows for footer in footers), len(footers), left_out)


def _look_at(seen: _Seen, column: pa.Array) -> None:
    seen.rows += len(column)
    seen.nulls += column.null_count
    low, high = _NOTHING
    if arrow_types.is_list(column.type):
        seen.null_elements += pc.list_flatten(column).null_count
        column = pc.list_value_length(column)
    elif seen.type == "string":
        column = pc.utf8_length(column)
    if pa.types.is_floating(column.type):
        finite = pc.is_finite(column)
        seen.not_finite += len(column) - column.null_count - (pc.sum(finite).as_py() or 0)
        column = column.filter(finite)
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        found = pc.min_max(column)
        low, high = found["min"].as_py(), found["max"].as_py()
    if low is not None:
        seen.low = low if seen.low is None else min(seen.low, low)
        seen.high = high if seen.high is None else max(seen.high, high)


def _types_only(column: str, kinds: Sequence[str], absent: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": column,
        "logicalType": _logical(kinds[0]),
        "physicalType": " | ".join(kinds),
    }
    if absent:
        entry["customProperties"] = [{"property": "mayBeAbsent", "value": True}]
    return entry


def _logical(kind: str) -> str:
    if kind.startswith("list<"):
        return "array"
    if kind.startswith("timestamp"):
        return "timestamp"
    for logical in ("integer", "number", "boolean", "date", "time"):
        if kind in arrow_types.LOGICAL[logical]:
            return logical
    return "string"


def _property(seen: _Seen, data: DataFiles, footers: Sequence[Footer]) -> dict[str, Any]:
    entry = _types_only(seen.name, [seen.type], absent=False)
    rules: list[dict[str, Any]] = []
    if seen.nulls == 0:
        entry["required"] = True
    else:
        percent = 100 * seen.nulls / seen.rows
        rules.append(
            {
                "metric": "nullValues",
                "description": f"{percent:.3g} % are null in the draft's data.",
                "unit": "percent",
                "mustBeLessOrEqualTo": min(100, math.ceil(percent * 1.2)),
                "severity": "warn",
            }
        )
    logical = entry["logicalType"]
    if logical == "array":
        entry["items"] = {"logicalType": _logical(seen.type[5:-1])}
        if seen.null_elements == 0:
            entry["items"]["required"] = True
        if seen.high is not None:
            entry["logicalTypeOptions"] = {"maxItems": _rounded_up(seen.high)}
    elif logical == "string" and seen.type == "string" and seen.high is not None:
        entry["logicalTypeOptions"] = {"minLength": min(seen.low, 1)}
        entry["logicalTypeOptions"]["maxLength"] = _rounded_up(seen.high)
        categories = _categories(seen, data, footers)
        if categories:
            rules.append(
                {
                    "metric": "invalidValues",
                    "arguments": {"validValues": categories},
                    "mustBe": 0,
                    "severity": "warn",
                }
            )
    elif logical in ("integer", "number") and seen.low is not None:
        rules += [
            _own({"rule": "smallestValue", "mustBeGreaterOrEqualTo": seen.low}),
            _own({"rule": "largestValue", "mustBeLessOrEqualTo": seen.high}),
        ]
        if logical == "number" and seen.not_finite == 0:
            rules.append(_own("finite"))
    if rules:
        entry["quality"] = rules
    return entry


def _own(implementation: object) -> dict[str, Any]:
    return {
        "type": "custom",
        "engine": "tailtower",
        "implementation": implementation,
        "severity": "warn",
    }


def _rounded_up(length: int) -> int:
    """The next power of two: a length of today is no limit for tomorrow."""
    return 1 << max(int(length) - 1, 0).bit_length() if length > 1 else 1


# Distinct values and keys ---------------------------------------------------------------------


def _stream(
    data: DataFiles, footers: Sequence[Footer], columns: Sequence[str]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    first = next(data.batches(footers[0].file, columns)).schema
    schema = pa.schema([(name, database.storable(first.field(name).type)) for name in columns])
    batches = (
        batch.select(schema.names).cast(schema)
        for footer in footers
        for batch in data.batches(footer.file, columns)
    )
    return schema, batches


def _categories(seen: _Seen, data: DataFiles, footers: Sequence[Footer]) -> list[str]:
    column = database.quoted(seen.name)
    with database.tables(rows=_stream(data, footers, [seen.name])) as connection:
        found = connection.execute(
            f"SELECT {column}, count(*) FROM rows WHERE {column} IS NOT NULL "
            f"GROUP BY 1 ORDER BY 1 LIMIT {_CATEGORIES + 1}"
        ).fetchall()
    many = seen.rows >= _TIMES_EACH * len(found)
    return [value for value, _ in found] if 0 < len(found) <= _CATEGORIES and many else []


def _key(
    columns: Sequence[_Seen], data: DataFiles, footers: Sequence[Footer]
) -> tuple[str, ...] | None:
    """The fewest columns of which no two rows agree, if there are any."""
    possible = [
        column
        for column in columns
        if column.nulls == 0
        and not column.type.startswith(("list<", "float", "bool"))
        and column.rows > 1
    ]
    names = [column.name for column in possible]
    if not names:
        return None
    rows = possible[0].rows
    with database.tables(rows=_stream(data, footers, names)) as connection:
        listed = ", ".join(f"approx_count_distinct({database.quoted(n)})" for n in names)
        connection.execute("CREATE OR REPLACE TEMP TABLE drafted AS SELECT * FROM rows")
        counts = connection.execute(f"SELECT {listed} FROM drafted").fetchone() or ()
        # The columns with most values, in the order of the file.
        most = sorted(range(len(names)), key=lambda n: -counts[n])[:_KEY_CANDIDATES]
        candidates = [(names[n], int(counts[n])) for n in sorted(most)]
        found = None
        for size in range(1, _KEY_COLUMNS + 1):
            for chosen in itertools.combinations(candidates, size):
                # Estimates are a few percent off.
                if math.prod(count for _, count in chosen) < 0.8 * rows:
                    continue
                key = ", ".join(database.quoted(name) for name, _ in chosen)
                distinct = connection.execute(
                    f"SELECT count(*) FROM (SELECT DISTINCT {key} FROM drafted)"
                ).fetchone()
                if distinct and distinct[0] == rows:
                    found = tuple(name for name, _ in chosen)
                    break
            if found:
                break
        connection.execute("DROP TABLE drafted")
    return found


# Text -----------------------------------------------------------------------------------------


def _as_text(content: dict[str, Any], rows: int, files: int, left_out: Sequence[str]) -> str:
    remarks = [
        f"# Drafted from {rows:,} rows in {files:,} files: correct it before you rely on it.",
        "# `severity: warn` is shown, `severity: block` (also of types, `required` and",
        "# `logicalTypeOptions`) stops the run. Mark columns about people with",
        "# `classification: personal`: their values are then never shown.",
    ]
    remarks += [f"# Left out, because its type is not checked: {column}" for column in left_out]
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    return "\n".join([*remarks, text])
