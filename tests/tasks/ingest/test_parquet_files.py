"""Protects IDs and times of Parquet files: whole floats are integers, large ones stay exact."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.ingest import IngestMapping, ingest

MOMENT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def make(tmp_path, users, items) -> str:
    times = pa.array([MOMENT] * len(users), pa.timestamp("ns", "Europe/Berlin"))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"user_id": users, "item_id": items, "timestamp": times}), path)
    return str(path)


def test_integers_stay_exact_and_nulls_do_not_turn_them_into_floats(lake, tmp_path, rows_of):
    # These two would be the same number as floats.
    users = pa.array([2**53, 2**53 + 1, None, -5], pa.int64())
    report = ingest(make(tmp_path, users, pa.array([1, 2, 3, 4], pa.uint64())), lake)
    assert [(row["user_id"], row["item_id"]) for row in rows_of(lake)] == [
        (2**53, 1),
        (2**53 + 1, 2),
        (-5, 4),
    ]
    assert {row["timestamp"] for row in rows_of(lake)} == {MOMENT}
    assert report.interactions.dropped == {"user_id missing": 1}


def test_float_ids_must_be_whole(lake, tmp_path, rows_of):
    users = pa.array([17850.0, 1.5, float("nan"), None, 1e300])
    report = ingest(make(tmp_path, users, ["a"] * 5), lake)
    assert [row["user_id"] for row in rows_of(lake)] == [17850]
    assert report.interactions.dropped == {"user_id missing": 2, "user_id is no whole number": 2}
    assert [row.row for row in report.interactions.samples] == [3, 4, 2, 5]


def test_numbers_become_texts_on_demand_and_categories_are_texts(lake, tmp_path, rows_of):
    users = pa.array([17850.0, 3.0])
    items = pa.array(["x", "y"]).dictionary_encode()
    ingest(make(tmp_path, users, items), lake, IngestMapping(id_type="string"))
    assert [(row["user_id"], row["item_id"]) for row in rows_of(lake)] == [
        ("17850", "x"),
        ("3", "y"),
    ]


def test_memory_for_runs_does_not_change_the_result(tmp_path, rows_of):
    from tasks.lake import Lake

    count = 5_000
    # Each row of another day than the one before, so every run holds every day.
    times = [1_767_225_600 + (n * 7 % 11) * 86_400 + n for n in range(count)]
    table = pa.table(
        {
            "user_id": list(range(count)),
            "item_id": [n % 13 for n in range(count)],
            "timestamp": times,
        }
    )
    path = tmp_path / "many.parquet"
    pq.write_table(table, path, row_group_size=500)
    digests = []
    for run_bytes in (1 << 30, 1):
        lake = Lake(str(tmp_path / f"lake{run_bytes}"))
        report = ingest(str(path), lake, run_bytes=run_bytes)
        assert report.interactions.rows_out == count
        days = lake.days("raw/interactions")
        assert len(days) == 11
        partitions = [lake.partition("raw/interactions", day) for day in days]
        digests.append([partition and partition.digest for partition in partitions])
        got = rows_of(lake)
        assert sorted(row["user_id"] for row in got) == list(range(count))
        assert all(a["timestamp"] <= b["timestamp"] for a, b in pairwise(got))
    assert digests[0] == digests[1]
