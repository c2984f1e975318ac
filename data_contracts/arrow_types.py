"""Names of Arrow types as contracts write them, and what the standard's logical types allow.

A name says what the values are, not how they are stored: `large_string` and a dictionary of
strings are both `string`.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.types as pat

_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FLOATS = ("float16", "float32", "float64")
_UNITS = ("s", "ms", "us", "ns")
_TIMESTAMP = re.compile(r"^timestamp\[(s|ms|us|ns)(, tz=[^\]]+)?\]$")

#: Types that each logical type of the standard allows; `timestamp` is matched by its pattern.
LOGICAL: dict[str, tuple[str, ...]] = {
    "string": ("string",),
    "integer": _INTEGERS,
    "number": (*_FLOATS, *_INTEGERS),
    "boolean": ("bool",),
    "date": ("date32", "date64"),
    "time": tuple(f"time{bits}[{unit}]" for bits in (32, 64) for unit in _UNITS),
}
PRIMITIVES = frozenset(name for names in LOGICAL.values() for name in names) | {"binary"}


def type_name(data_type: pa.DataType) -> str:
    """The name of an Arrow type, independent of how its values are stored."""
    if pat.is_dictionary(data_type):
        return type_name(data_type.value_type)
    if pat.is_large_string(data_type) or pat.is_string_view(data_type):
        return "string"
    if pat.is_large_binary(data_type) or pat.is_binary_view(data_type):
        return "binary"
    if is_list(data_type):
        return f"list<{type_name(data_type.value_type)}>"
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(
        str(data_type),
        str(data_type).removesuffix("[day]").removesuffix("[ms]")
        if pat.is_date(data_type)
        else str(data_type),
    )


def is_number(name: str) -> bool:
    """Whether a type holds numbers."""
    return name in LOGICAL["number"]


def is_list(data_type: pa.DataType) -> bool:
    """Whether values are lists, of any storage."""
    return bool(
        pat.is_list(data_type) or pat.is_large_list(data_type) or pat.is_fixed_size_list(data_type)
    )


def is_known(name: str) -> bool:
    """Whether a contract may name this type."""
    if name.startswith("list<") and name.endswith(">"):
        return is_known(name[5:-1])
    return name in PRIMITIVES or bool(_TIMESTAMP.match(name))


def matches(name: str, allowed: str) -> bool:
    """Whether a column's type is one that is allowed; `timestamp` allows every unit and zone."""
    if allowed == "timestamp":
        return bool(_TIMESTAMP.match(name))
    if allowed == "list":
        return name.startswith("list<")
    if allowed.startswith("list<"):
        return name.startswith("list<") and matches(name[5:-1], allowed[5:-1])
    return name == allowed
