"""Protects the shipped mappings: the counts are those that the data sets' own notes state."""

from __future__ import annotations

from datetime import date

import duckdb
import pytest

from tasks.config_file import load_yaml
from tasks.ingest import IngestMapping, ingest
from tasks.version import PROJECT_ROOT


def mapping(name: str) -> IngestMapping:
    return load_yaml(PROJECT_ROOT / "conf" / "mappings" / f"{name}.yaml", IngestMapping)


def query(lake, dataset: str, sql: str):
    files = f"{lake.root}/{dataset}/dt=*/*/*.parquet"
    return duckdb.sql(sql.replace("DATA", f"read_parquet('{files}', hive_partitioning=true)"))


def test_movietweetings(lake, shared_data):
    report = ingest(str(shared_data / "movietweetings" / "100K"), lake, mapping("movietweetings"))
    assert report.interactions.rows_in == report.interactions.rows_out == 100_000
    assert (report.users, report.items) == (16_554, 10_506)
    assert report.interactions.dropped == {}
    assert report.interactions.days[0] == date(2013, 2, 28)
    assert report.interactions.days[-1] == date(2013, 9, 1)
    padded = "SELECT count(*) FROM DATA WHERE item_id LIKE '0%' AND length(item_id) = 7"
    source = shared_data / "movietweetings" / "100K" / "ratings.dat"
    expected = sum(
        line.split("::")[1].startswith("0")
        for line in source.read_text(encoding="utf-8").splitlines()
    )
    assert query(lake, "raw/interactions", padded).fetchone() == (expected,)
    rare = query(
        lake,
        "raw/interactions",
        "SELECT avg((n <= 2)::INT) FROM (SELECT count(*) n FROM DATA GROUP BY item_id)",
    ).fetchone()
    assert rare is not None
    assert rare[0] == pytest.approx(0.616, abs=5e-4)
    movie = "SELECT title, genres FROM DATA WHERE item_id = '0004972'"
    assert query(lake, "raw/items", movie).fetchall() == [
        ("The Birth of a Nation (1915)", ["Drama", "History", "Romance", "War"])
    ]


def test_online_retail(lake, shared_data):
    shipped = mapping("online_retail")
    assert shipped.filters[-1].name == "not a product"
    # The data set's notes count postage and the like as products.
    as_noted = shipped.model_copy(update={"filters": shipped.filters[:-1], "items": None})
    report = ingest(str(shared_data / "online-retail"), lake, as_noted)
    assert report.interactions.rows_in == 541_909
    assert (report.users, report.items) == (4_339, 3_665)
    assert report.interactions.dropped == {"user_id missing": 135_080, "rule: cancelled": 8_905}
    assert report.interactions.days[0] == date(2010, 12, 1)
    assert report.interactions.days[-1] == date(2011, 12, 9)
    types = query(lake, "raw/interactions", "SELECT typeof(user_id), typeof(item_id) FROM DATA")
    assert types.fetchone() == ("BIGINT", "VARCHAR")


def test_online_retail_as_shipped_leaves_out_what_is_no_product(lake, shared_data):
    source = str(shared_data / "online-retail" / "onlineretail.parquet")
    report = ingest(source, lake, mapping("online_retail"))
    codes = query(lake, "raw/interactions", "SELECT DISTINCT item_id FROM DATA").fetchall()
    assert all(code[0].isdigit() for (code,) in codes)
    assert len(codes) == report.items == 3_665 - 6  # M, BANK CHARGES, PADS, DOT, POST, C2
    titles = query(lake, "raw/items", "SELECT count(DISTINCT item_id) FROM DATA").fetchone()
    assert titles == (report.items,)


def test_gowalla(lake, shared_data):
    report = ingest(str(shared_data / "gowalla"), lake, mapping("gowalla"))
    assert report.interactions.rows_out == 810_128
    assert (report.users, report.items) == (29_858, 40_981)
    assert len(report.interactions.days) == 14
    assert "SYNTHETIC" in report.notes[0]
