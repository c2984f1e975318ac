"""Protects what becomes of each row of a text file: kept with its exact ID, or dropped and counted.

Expected values are worked out by hand from the few lines in each test.
"""

from __future__ import annotations

import gzip
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import ConfigError, DataError
from tasks.ingest import IngestMapping, ingest
from tasks.ingest.delimited import _Lines
from tasks.ingest.mapping import DropRule

FILE = """user_id,item_id,timestamp,price
007,0104257,2026-01-01T23:59:59Z,1.5
7,0104257,2026-01-02T00:30:00+01:00,2
,0104257,2026-01-02T00:00:00Z,2
8,,2026-01-02T00:00:00Z,2
9,5,,2
9,5,soon,2
9,5,1815-12-10T00:00:00Z,2
9,5
9,5,2026-01-03T12:00:00Z,0
9,5,2026-01-03T12:00:00Z,free
9,NULL,2026-01-03T12:00:00Z,1
10,5,2026-01-03T12:00:00Z,3
"""


def test_every_row_is_kept_or_counted_with_its_reason_and_line(lake, write, rows_of):
    mapping = IngestMapping(
        filters=(DropRule(name="free", column="price", drop_if="at_most", value=0.0),)
    )
    source = write("events.csv", FILE)
    report = ingest(source, lake, mapping)
    table = report.interactions
    assert (table.rows_in, table.rows_out) == (12, 3)
    assert table.dropped == {
        "2 columns instead of 4": 1,
        "user_id missing": 1,
        "item_id missing": 2,
        "timestamp missing": 1,
        "timestamp is no time": 1,
        "timestamp not in 1970 to 2099": 1,
        "rule: free": 1,
        "rule: free (not a number)": 1,
    }
    lines = {(row.reason, row.row) for row in table.samples}
    assert lines == {
        ("user_id missing", 4),
        ("item_id missing", 5),
        ("timestamp missing", 6),
        ("timestamp is no time", 7),
        ("timestamp not in 1970 to 2099", 8),
        ("2 columns instead of 4", 9),
        ("rule: free", 10),
        ("rule: free (not a number)", 11),
        ("item_id missing", 12),
    }
    assert {row.file for row in table.samples} == {source}
    assert rows_of(lake) == [
        # 00:30 at +01:00 is still the day before in UTC, and sorted by time within the day.
        {
            "user_id": "7",
            "item_id": "0104257",
            "timestamp": datetime(2026, 1, 1, 23, 30, tzinfo=UTC),
        },
        {
            "user_id": "007",
            "item_id": "0104257",
            "timestamp": datetime(2026, 1, 1, 23, 59, 59, tzinfo=UTC),
        },
        {"user_id": "10", "item_id": "5", "timestamp": datetime(2026, 1, 3, 12, tzinfo=UTC)},
    ]
    assert (report.users, report.items) == (3, 2)
    assert table.days == [date(2026, 1, 1), date(2026, 1, 3)]
    assert "1 of the days" in report.notes[0]


def test_lines_are_right_when_a_quoted_value_spans_lines(lake, write):
    text = 'user_id,item_id,timestamp,note\na,b,1767225600,"one\ntwo\nthree"\n,b,1767225600,x\n'
    report = ingest(write("quoted.csv", text), lake)
    assert report.interactions.rows_out == 1
    assert [sample.row for sample in report.interactions.samples] == [5]


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        ("a.tsv", "user_id\titem_id\ttimestamp\nü\t1\t1767225600\n", {}),
        ("a.csv", "user_id;item_id;timestamp\nü;1;1767225600\n", {"delimiter": ";"}),
        ("a.dat", "ü::1::1767225600\n", {"delimiter": "::", "columns": ("user", "item", "time")}),
        ("a.csv", "UserID,ProductId,unixReviewTime\r\nü,1,1767225600\r\n", {}),
        ("a.csv", "\ufeffuser_id,item_id,timestamp\nü,1,1767225600", {}),
    ],
)
def test_dialects_give_the_same_row(lake, write, rows_of, name, text, settings):
    ingest(write(name, text), lake, IngestMapping(**settings))
    assert rows_of(lake) == [
        {"user_id": "ü", "item_id": "1", "timestamp": datetime(2026, 1, 1, tzinfo=UTC)}
    ]


def test_compressed_files_of_a_folder_and_another_encoding(lake, tmp_path: Path, rows_of):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, user in (("b.csv.gz", "é"), ("a.csv.gz", "ß")):
        text = f"user_id,item_id,timestamp\n{user},1,1767225600\n"
        (folder / name).write_bytes(gzip.compress(text.encode("latin-1")))
    (folder / "_SUCCESS").write_text("")
    (folder / ".hidden.csv").write_text("nonsense")
    report = ingest(str(folder), lake, IngestMapping(encoding="latin-1"))
    assert [row["user_id"] for row in rows_of(lake)] == ["ß", "é"]
    assert [Path(file).name for file in report.interactions.files] == ["a.csv.gz", "b.csv.gz"]
    again = ingest(f"{folder}/*.csv.gz", lake, IngestMapping(encoding="latin-1"))
    assert again.reused


@given(st.text("a:|", max_size=40), st.sampled_from(["::", ":|:", "|:a:"]), st.integers(1, 9))
def test_a_long_delimiter_cut_by_a_block_border_is_still_one(text, delimiter, size):
    stream = _Lines(pa.BufferReader(text.encode()), delimiter, "here")
    blocks = list(iter(lambda: stream.read(size), b""))
    assert b"".join(blocks).decode() == text.replace(delimiter, "\x1f")


def test_integers_on_demand_and_other_columns_carried_along(lake, write, rows_of):
    text = "user_id,item_id,timestamp,w,where,n\n007,5.0,1767225600,2,DE,3\nx,5,1767225600,1,FR,4\n"
    text += "8,5,1767225600,-1,FR,4\n8,5,1767225600,1,FR,many\n"
    mapping = IngestMapping(
        id_type="int",
        map={"weight": "w", "country": "where", "n": "n"},
        types={"n": "int"},
    )
    report = ingest(write("a.csv", text), lake, mapping)
    assert rows_of(lake) == [
        {
            "user_id": 7,
            "item_id": 5,
            "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
            "weight": 2.0,
            "country": "DE",
            "n": 3,
        }
    ]
    assert report.interactions.dropped == {
        "user_id is no whole number": 1,
        "weight is no number from 0": 1,
        "n is no int": 1,
    }


def test_duplicates_are_dropped_only_when_asked(lake, write, tmp_path: Path, rows_of):
    text = "user_id,item_id,timestamp\n" + "a,b,1767225600\n" * 3 + "a,b,1767225601\n"
    source = write("a.csv", text)
    report = ingest(source, lake, IngestMapping(drop_duplicates=True))
    assert report.interactions.dropped == {"duplicate of an earlier row": 2}
    assert len(rows_of(lake)) == report.interactions.rows_out == 2
    other = type(lake)(str(tmp_path / "other"))
    assert ingest(source, other).interactions.rows_out == 4


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"map": {"item_id": "itm"}}, "did you mean 'item'"),
        ({"map": {"user_id": "item"}}, "no column is known to be item_id"),
    ],
)
def test_a_wrong_mapping_names_the_nearest_column(lake, write, mapping, message):
    text = "user_id,item,timestamp\na,b,1767225600\n"
    if "user_id" in mapping["map"]:
        text = "user_id,thing,timestamp\na,b,1767225600\n"
        mapping = {"map": {"user_id": "user_id"}}
    with pytest.raises(ConfigError) as caught:
        ingest(write("a.csv", text), lake, IngestMapping(**mapping))
    assert message in str(caught.value)


def test_files_that_give_nothing_are_refused(lake, write):
    with pytest.raises(DataError, match="no row can be used"):
        ingest(write("a.csv", "user_id,item_id,timestamp\n,b,1767225600\n"), lake)
    with pytest.raises(DataError, match="no file to read"):
        ingest("/nowhere/at/all.csv", lake)
    with pytest.raises(DataError, match="cannot tell how times are written"):
        ingest(write("b.csv", "user_id,item_id,timestamp\na,b,12/1/2010 8:26\n"), lake)
    with pytest.raises(DataError, match="cannot read the file"):
        ingest(write("c.parquet", "not parquet"), lake)
    assert lake.days("raw/interactions") == []
