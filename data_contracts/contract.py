"""A contract: the columns of one data set and the rules that its days must keep.

`load_contract` translates an ODCS v3.1 file. What the standard can say and this product cannot
check is refused with its line, so a rule that is written down is a rule that is kept.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_contracts import arrow_types
from data_contracts.contract_file import ContractFile
from data_contracts.quality_rules import quality_rules
from data_contracts.rules import Bound, Column, Rule, Severity
from data_contracts.value_rules import Place, value_rules

#: Raised when equal data and an equal contract may give another result than before.
CHECKS_VERSION = 2

#: Keys of a column that only describe it.
_DESCRIBING = frozenset(
    [
        "id",
        "name",
        "description",
        "businessName",
        "physicalName",
        "authoritativeDefinitions",
        "tags",
        "examples",
        "criticalDataElement",
        "partitioned",
        "partitionKeyPosition",
        "encryptedName",
        "transformSourceObjects",
        "transformLogic",
        "transformDescription",
    ]
)
_COLUMN_KEYS = frozenset(
    [
        "logicalType",
        "physicalType",
        "required",
        "unique",
        "primaryKey",
        "primaryKeyPosition",
        "classification",
        "logicalTypeOptions",
        "items",
        "quality",
        "customProperties",
    ]
)
_PERSONAL = frozenset(("personal", "pii", "confidential", "restricted"))


@dataclass(frozen=True)
class Contract:
    """What one data set must look like.

    Attributes:
        dataset: Name of the data set, for example `interactions`.
        version: Version of the contract, its owner's.
        digest: Identity of everything that a result depends on but the data.
        columns: The columns.
        rules: The rules; the footers' own (readable, types, columns) are implied.
        additional_columns: What an undeclared column does.
        path: The file.
    """

    dataset: str
    version: str
    digest: str
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    additional_columns: Severity | None
    path: str

    def column(self, name: str) -> Column | None:
        """A declared column."""
        return next((column for column in self.columns if column.name == name), None)

    def is_personal(self, names: tuple[str, ...]) -> bool:
        """Whether values of any of the columns must not be shown."""
        return any(column.personal for column in self.columns if column.name in names)


def load_contract(path: str | Path) -> Contract:
    """Reads a contract.

    Args:
        path: An ODCS v3.1 YAML file with one schema object.

    Raises:
        ContractFileError: The file is not ODCS, or says something that cannot be checked.
    """
    file = ContractFile(Path(path))
    content = file.content
    schemas = content.get("schema") or []
    if len(schemas) != 1:
        raise file.error(
            f"the contract has {len(schemas)} schema objects", ["schema"], "write one a data set"
        )
    return _Translator(file, schemas[0]).contract()


class _Translator:
    """Collects columns and rules of one file."""

    def __init__(self, file: ContractFile, schema: dict[str, Any]) -> None:
        self.file = file
        self.schema = schema
        self.rules: list[Rule] = []

    def contract(self) -> Contract:
        properties = self.schema.get("properties") or []
        root: Place = ("schema", 0)
        if not properties:
            raise self.file.error("the schema has no properties", root, "list the columns")
        if "relationships" in self.schema:
            raise self.file.error(
                "relationships are not checked", (*root, "relationships"), "remove the key"
            )
        columns = [
            self._column(properties[n], (*root, "properties", n)) for n in range(len(properties))
        ]
        names = [column.name for column in columns]
        for n, name in enumerate(names):
            if name in names[:n]:
                place = (*root, "properties", n, "name")
                raise self.file.error(f"column '{name}' is declared twice", place, "keep one")
        self._primary_key(properties)
        self.rules += quality_rules(self.file, self.schema, root, column=None, columns=columns)
        self._service_levels(names)
        return Contract(
            dataset=self.schema["name"],
            version=str(self.file.content["version"]),
            digest=_digest([CHECKS_VERSION, self.file.content]),
            columns=tuple(columns),
            rules=tuple(_with_keys(self.rules)),
            additional_columns=self._additional_columns(root),
            path=str(self.file.path),
        )

    def _column(self, entry: dict[str, Any], place: Place) -> Column:
        for key in entry:
            if key not in _COLUMN_KEYS | _DESCRIBING:
                raise self.file.error(
                    f"'{key}' is not checked by this version", (*place, key), "remove the key"
                )
        column = Column(
            name=entry.get("physicalName", entry["name"]),
            types=self._types(entry, place),
            may_be_absent=bool(
                self._custom(entry, place, {"mayBeAbsent": bool}).get("mayBeAbsent", False)
            ),
            personal=str(entry.get("classification", "")).lower() in _PERSONAL,
        )
        if entry.get("required") or entry.get("primaryKey"):
            self.rules.append(Rule("", "required", "nulls", (column.name,), "no nulls"))
        if entry.get("unique"):
            self.rules.append(Rule("", "unique", "duplicates", (column.name,), "no duplicates"))
        self.rules += value_rules(self.file, entry, place, column)
        self.rules += quality_rules(self.file, entry, place, column=column, columns=[column])
        return column

    def _types(self, entry: dict[str, Any], place: Place) -> tuple[str, ...]:
        logical = entry.get("logicalType")
        if "physicalType" in entry:
            names = tuple(name.strip() for name in entry["physicalType"].split("|"))
            for name in names:
                if not arrow_types.is_known(name):
                    known = sorted(arrow_types.PRIMITIVES | {"timestamp[us, tz=UTC]"})
                    raise self.file.unknown(name, known, (*place, "physicalType"), "type")
            return names
        if logical is None:
            raise self.file.error(
                "the column has no type", place, "give logicalType, or physicalType: string | int64"
            )
        if logical == "array":
            items = entry.get("items")
            if not items or "logicalType" not in items:
                return ("list",)
            inner = self._types(items, (*place, "items"))
            return tuple(f"list<{name}>" for name in inner)
        if logical == "timestamp":
            return ("timestamp",)
        if logical not in arrow_types.LOGICAL:
            raise self.file.error(
                f"columns of type {logical} are not checked",
                (*place, "logicalType"),
                "leave the column out, or give its physicalType",
            )
        return arrow_types.LOGICAL[logical]

    def _custom(
        self, entry: dict[str, Any], place: Place, known: dict[str, type]
    ) -> dict[str, Any]:
        """The product's own settings of an element, which the standard keeps in a list."""
        found = {}
        for n, custom in enumerate(entry.get("customProperties", [])):
            name, value = custom["property"], custom["value"]
            where = (*place, "customProperties", n, "property")
            if name not in known:
                raise self.file.unknown(name, sorted(known), where, "custom property")
            if not isinstance(value, known[name]):
                raise self.file.error(
                    f"'{name}' is {value!r}", where, f"give a {known[name].__name__}"
                )
            found[name] = value
        return found

    def _additional_columns(self, root: Place) -> Severity | None:
        policies: dict[str, Severity | None] = {"allow": None, "warn": "warn", "block": "block"}
        policy = self._custom(self.schema, root, {"additionalColumns": str}).get(
            "additionalColumns", "warn"
        )
        if policy not in policies:
            raise self.file.unknown(
                policy, list(policies), (*root, "customProperties"), "policy of additionalColumns"
            )
        return policies[policy]

    def _primary_key(self, properties: list[dict[str, Any]]) -> None:
        parts = [entry for entry in properties if entry.get("primaryKey")]
        parts.sort(key=lambda entry: entry.get("primaryKeyPosition", -1))
        names = tuple(entry.get("physicalName", entry["name"]) for entry in parts)
        if names:
            self.rules.append(Rule("", "primary key", "duplicates", names, "no duplicates"))

    def _service_levels(self, columns: list[str]) -> None:
        units = {"h": 1.0, "hr": 1.0, "hour": 1.0, "hours": 1.0, "d": 24.0, "day": 24.0}
        units |= {"days": 24.0, "m": 1 / 60, "min": 1 / 60, "minutes": 1 / 60}
        for n, level in enumerate(self.file.content.get("slaProperties", [])):
            place: Place = ("slaProperties", n)
            if level["property"] not in ("freshness", "fy"):
                raise self.file.unknown(
                    level["property"], ["freshness"], (*place, "property"), "service level"
                )
            element = str(level.get("element", "")).rpartition(".")[2]
            if element not in columns:
                raise self.file.unknown(element, columns, (*place, "element"), "column")
            unit, value = level.get("unit", "h"), level["value"]
            if unit not in units or isinstance(value, bool) or not isinstance(value, int | float):
                raise self.file.error(
                    f"freshness of {value!r} {unit}", place, "give a number and the unit h or d"
                )
            bound = Bound("mustBeLessOrEqualTo", (value * units[unit],), "hours")
            expected = f"newest event {bound} before the day's end"
            self.rules.append(
                Rule("", "freshness", "staleness", (element,), expected, bound, "warn")
            )


def _with_keys(rules: list[Rule]) -> list[Rule]:
    return [replace(rule, key=f"r{n:03d}") for n, rule in enumerate(rules)]


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
