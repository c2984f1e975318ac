"""Finds out which source column becomes which column of the lake."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tasks.errors import ConfigError
from tasks.ingest.mapping import IngestMapping, SideTable
from tasks.ingest.rows import Column, Kind

#: Names under which logs usually carry what is needed, compared without case and separators.
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "user_id": ("userid", "user", "uid", "customerid", "visitorid", "reviewerid", "memberid"),
    "item_id": ("itemid", "item", "iid", "productid", "movieid", "asin", "sku", "articleid"),
    "timestamp": ("timestamp", "time", "ts", "datetime", "eventtime", "unixreviewtime", "date"),
}


def interaction_columns(mapping: IngestMapping, present: Sequence[str], where: str) -> list[Column]:
    """The columns to make of an interactions file that has the columns `present`.

    Raises:
        ConfigError: A needed column is neither mapped nor found by its usual names, or a mapped
            one is not there; names the nearest.
    """
    chosen = dict(mapping.map)
    for target, usual in USUAL_NAMES.items():
        if target not in chosen:
            chosen[target] = _guess(target, usual, present, where)
    columns = []
    for target, source in chosen.items():
        kind: Kind = "as_is"
        if target in ("user_id", "item_id"):
            kind = "id"
        elif target == "timestamp":
            kind = "time"
        elif target == "weight":
            kind = "weight"
        elif target in mapping.types:
            kind = mapping.types[target]
        columns.append(Column(target, source, kind))
    _all_present([column.source for column in columns], present, where)
    _all_present([rule.column for rule in mapping.filters], present, where)
    # IDs first: a row without one counts as that, whatever else it lacks.
    order = ["user_id", "item_id", "timestamp"]
    return sorted(columns, key=lambda c: order.index(c.target) if c.target in order else 3)


def side_columns(table: SideTable, key: str, present: Sequence[str], where: str) -> list[Column]:
    """The columns to make of an items or users file that has the columns `present`.

    Raises:
        ConfigError: The ID is neither mapped nor found, or a mapped column is not there.
    """
    chosen = dict(table.map)
    if key not in chosen:
        chosen = {key: _guess(key, USUAL_NAMES[key], present, where), **chosen}
    if not table.map:
        chosen |= {name: name for name in present if name != chosen[key]}
    columns = []
    for target, source in chosen.items():
        if target == key:
            columns.append(Column(target, source, "id"))
        elif target == "timestamp":
            columns.append(Column(target, source, "time"))
        elif target in table.lists:
            columns.append(Column(target, source, "list", separator=table.lists[target]))
        else:
            kind: Kind = "string" if target == "title" else "as_is"
            if target in table.types:
                kind = table.types[target]
            columns.append(Column(target, source, kind))
    _all_present([column.source for column in columns], present, where)
    _all_present([rule.column for rule in table.filters], present, where)
    return sorted(columns, key=lambda column: column.target != key)


def _guess(target: str, usual: Sequence[str], present: Sequence[str], where: str) -> str:
    plain = {"".join(filter(str.isalnum, name)).lower(): name for name in reversed(present)}
    for name in usual:
        if name in plain:
            return plain[name]
    option = "items-map" if target == "item_id" and "items" in where else "map"
    raise ConfigError(
        f"no column is known to be {target}",
        where=f"{where} (columns: {', '.join(present)})",
        fix=f"name it: --{option} {target}=COLUMN, or in a mapping file",
    )


def _all_present(wanted: Sequence[str], present: Sequence[str], where: str) -> None:
    for name in wanted:
        if name not in present:
            near = difflib.get_close_matches(name, present, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"columns: {', '.join(present)}"
            raise ConfigError(f"the file has no column '{name}'", where=where, fix=hint)
        if list(present).count(name) > 1:
            raise ConfigError(
                f"the file has two columns '{name}'", where=where, fix="rename one of them"
            )
