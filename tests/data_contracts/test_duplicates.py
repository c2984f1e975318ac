"""Duplicates are counted exactly, whatever the parts that the keys' hashes are sorted in.

Protects against an event that counts twice unseen: expected numbers come from a counter over the
rows in plain Python.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from data_contracts import duplicates as module
from data_contracts.duplicates import duplicates
from data_contracts.footer_checks import check_footers
from tests.data_contracts.days_of_data import day_of, shipped

KEY = ("user_id", "item_id", "timestamp")


def _tables(seed: int, rows: int) -> list[pa.Table]:
    rng = Random(seed)
    return [
        pa.table(
            {
                "user_id": pa.array([rng.choice([None, "a", "b", "é"]) for _ in range(rows)]),
                "item_id": pa.array([rng.randrange(12) for _ in range(rows)]),
                "timestamp": pa.array(
                    [rng.randrange(40) for _ in range(rows)], pa.timestamp("us", tz="UTC")
                ),
            }
        )
        for _ in range(3)
    ]


@pytest.mark.parametrize("part_rows", [7, 100, 1 << 22])
@pytest.mark.parametrize("rows", [1, 20, 400])
def test_repeated_rows_of_all_files_are_counted(
    rows: int, part_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_ROWS", part_rows)
    tables = _tables(rows, rows)
    day = day_of(tmp_path, *tables)
    contract = shipped("interactions")
    found = duplicates(contract, day.data, check_footers(contract, day.data), KEY)
    keys = [
        key
        for table in tables
        for key in zip(*(table[name].to_pylist() for name in KEY), strict=True)
    ]
    counted = Counter(key for key in keys if None not in key)
    assert found.count == sum(count - 1 for count in counted.values())
    assert found.of == 3 * rows
    assert len(found.samples) == min(5, sum(count > 1 for count in counted.values()))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0.0, -0.0, float("nan"), float("nan"), 1.5]),
        pa.array([[1, 2], [1, 2], [], [], [2, 1]]),
        pa.array([2**53, 2**53, 2**53 + 1, -1, -1]),
    ],
    ids=["floats", "lists", "integers no float can tell apart"],
)
def test_what_is_equal_has_one_hash(values: pa.Array, tmp_path: Path) -> None:
    day = day_of(tmp_path, pa.table({"h": values}))  # the name that the hashes have
    contract = shipped("items")
    found = duplicates(contract, day.data, check_footers(contract, day.data), ("h",))
    assert found.count == 2
