"""A drafted contract states what the data shows, is a valid contract, and is kept by its own data.

Protects the first minutes of somebody with a table of their own: a draft that is wrong, or that
its own data breaks, is worse than none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from data_contracts.check import DayOfData, check_days
from data_contracts.contract import load_contract
from data_contracts.data_files import UnreadableFileError
from data_contracts.draft import draft
from tests.data_contracts.days_of_data import day_of, files_in

ROWS = 200


def _orders() -> pa.Table:
    return pa.table(
        {
            "order": pa.array([n // 4 for n in range(ROWS)]),
            "line": pa.array([n % 4 for n in range(ROWS)], pa.int32()),
            "shop": pa.array([None if n % 10 == 0 else "north" for n in range(ROWS)]),
            "price": pa.array([n / 4 - 1 for n in range(ROWS)]),
            "tags": pa.array([["a", None]] * (ROWS - 1) + [[]], pa.list_(pa.string())),
            "at": pa.array(range(ROWS), pa.timestamp("us", tz="UTC")),
            "where": pa.array([{"x": 1}] * ROWS),
        }
    )


def _drafted(folder: Path, *tables: pa.Table) -> tuple[dict[str, Any], str]:
    data = day_of(folder / "data", *tables).data
    text = draft("orders", data)
    path = folder / "orders.odcs.yaml"
    path.write_text(text)
    contract = load_contract(path)
    (result,) = check_days(contract, [DayOfData(None, data)])
    assert [r for r in result.broken if r.column != "where"] == []
    schema = yaml.safe_load(text)["schema"][0]
    return {entry["name"]: entry for entry in schema["properties"]} | {"": schema}, text


def test_what_the_data_shows_is_stated(tmp_path: Path) -> None:
    found, text = _drafted(tmp_path, _orders().slice(0, 90), _orders().slice(90))
    order = found["order"]
    assert (order["logicalType"], order["physicalType"]) == ("integer", "int64")
    assert order["required"] is True
    smallest, largest = (rule["implementation"] for rule in order["quality"])
    assert smallest == {"rule": "smallestValue", "mustBeGreaterOrEqualTo": 0}
    assert largest == {"rule": "largestValue", "mustBeLessOrEqualTo": 49}
    nulls, values = found["shop"]["quality"]
    assert (nulls["unit"], nulls["mustBeLessOrEqualTo"]) == ("percent", 12)
    assert values["arguments"] == {"validValues": ["north"]}
    assert "required" not in found["shop"]
    assert found["shop"]["logicalTypeOptions"] == {"minLength": 1, "maxLength": 8}
    assert found["tags"]["items"] == {"logicalType": "string"}
    assert found["tags"]["logicalTypeOptions"] == {"maxItems": 2}
    assert found["price"]["quality"][-1]["implementation"] == "finite"
    assert "where" not in found
    assert "# Left out, because its type is not checked: where" in text
    assert "200 rows in 2 files" in text


def test_the_smallest_key_is_found(tmp_path: Path) -> None:
    table = _orders().drop_columns(["at", "where"])
    found, _ = _drafted(tmp_path / "two", table)
    (_, key) = found[""]["quality"]
    assert key["arguments"] == {"properties": ["order", "line"]}
    found, _ = _drafted(tmp_path / "one", _orders())
    assert found[""]["quality"][1]["arguments"] == {"properties": ["at"]}
    repeated = pa.concat_tables([table, table.slice(0, 1)])
    found, _ = _drafted(tmp_path / "none", repeated)
    assert len(found[""]["quality"]) == 1


def test_a_type_that_differs_between_files_is_drafted_as_both(tmp_path: Path) -> None:
    data = day_of(tmp_path, pa.table({"n": [1]}), pa.table({"n": ["1"], "m": [2]})).data
    properties = yaml.safe_load(draft("x", data))["schema"][0]["properties"]
    assert properties[0]["physicalType"] == "int64 | string"
    assert properties[1]["customProperties"] == [{"property": "mayBeAbsent", "value": True}]


def test_nothing_to_draft_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no Parquet file with a row"):
        draft("x", files_in(tmp_path))
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"n\n1\n")
    with pytest.raises(UnreadableFileError, match="not Parquet"):
        draft("x", files_in(tmp_path))
