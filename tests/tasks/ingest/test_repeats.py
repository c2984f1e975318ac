"""Protects days that are in the lake: the same again is no work, other data never slips in."""

from __future__ import annotations

import os
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import DataError
from tasks.ingest import IngestMapping, ingest

HEAD = "user_id,item_id,timestamp\n"
ONE = HEAD + "a,x,2026-01-01\nb,x,2026-01-02\n"
TWO = HEAD + "c,y,2026-01-02T10:00\nc,y,2026-01-03\n"


def snapshot(lake) -> dict[str, tuple[int, int]]:
    return {
        os.path.join(folder, name): (info.st_mtime_ns, info.st_ino)
        for folder, _, names in os.walk(lake.root)
        for name in names
        for info in [os.stat(os.path.join(folder, name))]
    }


def users(rows) -> list[str]:
    return [row["user_id"] for row in rows]


def test_the_same_source_again_touches_nothing(lake, write):
    source = write("one.csv", ONE)
    first = ingest(source, lake)
    before = snapshot(lake)
    again = ingest(source, lake)
    assert again.reused
    assert not first.reused
    assert again.model_copy(update={"reused": False}) == first
    assert snapshot(lake) == before


def test_a_copy_elsewhere_is_the_same_source_another_mapping_is_not(lake, write):
    ingest(write("one.csv", ONE), lake)
    assert ingest(write("copy/renamed.csv", ONE), lake).reused
    with pytest.raises(DataError, match="already holds data of another source"):
        ingest(write("one.csv", ONE), lake, IngestMapping(timezone="Asia/Tokyo"))


def test_a_removed_day_comes_back(lake, write, rows_of):
    source = write("one.csv", ONE)
    ingest(source, lake)
    lake.delete("raw/interactions/dt=2026-01-02")
    report = ingest(source, lake)
    assert not report.reused
    assert report.interactions.actions == {"unchanged": 1, "published": 1}
    assert users(rows_of(lake)) == ["a", "b"]


def test_other_data_for_a_day_is_refused_and_changes_nothing(lake, write):
    ingest(write("one.csv", ONE), lake)
    before = snapshot(lake)
    with pytest.raises(DataError, match="2026-01-02") as caught:
        ingest(write("two.csv", TWO), lake)
    assert "--append" in str(caught.value)
    assert snapshot(lake) == before


def test_append_adds_rows_once(lake, write, rows_of):
    ingest(write("one.csv", ONE), lake)
    report = ingest(write("two.csv", TWO), lake, existing="append")
    assert report.interactions.actions == {"appended": 1, "published": 1}
    assert report.interactions.rows_out == 2
    assert users(rows_of(lake)) == ["a", "b", "c", "c"]
    assert ingest(write("two.csv", TWO), lake, existing="append").reused
    assert ingest(write("one.csv", ONE), lake, existing="append").reused
    assert users(rows_of(lake)) == ["a", "b", "c", "c"]


def test_replace_leaves_only_the_new_rows_and_no_old_file(lake, write, rows_of):
    ingest(write("one.csv", ONE), lake)
    report = ingest(write("two.csv", TWO), lake, existing="replace")
    assert report.interactions.actions == {"replaced": 1, "published": 1}
    assert users(rows_of(lake)) == ["a", "c", "c"]
    files = [path for path in snapshot(lake) if "dt=2026-01-02" in path]
    assert sorted(os.path.basename(path) for path in files) == ["manifest.json", "part-0.parquet"]
    # The first source is not complete any more, so it is not mistaken for done.
    with pytest.raises(DataError, match="another source"):
        ingest(write("one.csv", ONE), lake)


def test_days_that_somebody_else_delivered_are_respected(lake, write, rows_of):
    folder = lake.local_path("raw/interactions/dt=2026-01-02")
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "user_id": ["z"],
            "item_id": ["x"],
            "timestamp": pa.array([1_767_312_000_000_000], pa.timestamp("us", "UTC")),
            "device": ["tv"],
        }
    )
    pq.write_table(table, folder / "theirs.parquet")
    (folder / "_SUCCESS").touch()
    with pytest.raises(DataError, match="another source"):
        ingest(write("one.csv", ONE), lake)
    ingest(write("one.csv", ONE), lake, existing="append")
    day = lake.partition("raw/interactions", date(2026, 1, 2))
    rows = lake.read_tables(day).to_pylist()
    assert [(row["user_id"], row["device"]) for row in rows] == [("z", "tv"), ("b", None)]
    assert not (folder / "theirs.parquet").exists()


def test_ids_of_another_type_are_refused(lake, write):
    ingest(write("one.csv", ONE), lake)
    numbers = HEAD + "1,2,2026-02-01\n"
    with pytest.raises(DataError, match=r"is string, the source's is int64"):
        ingest(write("numbers.csv", numbers), lake, IngestMapping(id_type="int"))
    ingest(write("numbers.csv", numbers), lake)


def test_files_whose_types_disagree_are_refused(lake, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    moment = pa.array([1_767_312_000_000_000], pa.timestamp("us"))
    for name, user in (("a.parquet", [1]), ("b.parquet", ["1"])):
        table = pa.table({"user_id": user, "item_id": ["x"], "timestamp": moment})
        pq.write_table(table, folder / name)
    with pytest.raises(DataError, match=r"user_id is int64 in the files before and string here"):
        ingest(str(folder), lake)
    assert lake.days("raw/interactions") == []
