"""Protects the command line: options, mapping files, and messages that say what to do."""

from __future__ import annotations

import json
from datetime import date

import pytest
import typer
from typer.testing import CliRunner

from tasks.config_file import load_yaml
from tasks.errors import ConfigError
from tasks.ingest import IngestMapping
from tasks.ingest.command import ingest_command
from tasks.ingest.options import build_mapping, drop_rules, pairs
from tasks.lake import Lake

EVENTS = "CustomerID;Code;When;Qty\na;1;31/12/2025 23:30;2\nb;1;01/01/2026 00:30;-1\nc;D;x;1\n"
ITEMS = "1;Lamp;red|blue\n"


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(ingest_command)

    def invoke(*arguments: str):
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def test_everything_from_the_command_line(run, write, tmp_path, rows_of):
    write("in/items.txt", ITEMS)
    report = tmp_path / "report.json"
    result = run(
        *(write("in/events.txt", EVENTS), "--lake", str(tmp_path / "lake")),
        *("--map", "user_id=CustomerID", "--map", "item_id=Code", "--map", "timestamp=When"),
        *("--delimiter", ";", "--time-format", "%d/%m/%Y %H:%M"),
        *("--drop", "returned: Qty less_than 0", "--drop", "no product: Code matches ^[A-Z]"),
        *("--items", "items.txt", "--items-columns", "id,name,colours"),
        *("--items-map", "item_id=id", "--items-map", "colours=colours"),
        *("--items-list", "colours=|", "--report", str(report)),
    )
    assert result.exit_code == 0
    assert "rule: returned" in result.output
    lake = Lake(str(tmp_path / "lake"))
    assert [row["user_id"] for row in rows_of(lake)] == ["a"]
    assert rows_of(lake, "raw/items") == [
        {"item_id": "1", "colours": ["red", "blue"], "dt": "2025-12-31"}
    ]
    assert json.loads(report.read_text())["interactions"]["dropped"] == {
        "timestamp is no time": 1,
        "rule: returned": 1,
    }


def test_json_report_and_exclusive_options(run, write, tmp_path):
    source = write("a.csv", "user_id,item_id,timestamp\na,b,2026-01-01\n")
    result = run(source, "--lake", str(tmp_path / "lake"), "--json")
    assert json.loads(result.stdout)["interactions"]["days"] == ["2026-01-01"]
    with pytest.raises(ConfigError, match="exclude each other"):
        run(source, "--lake", str(tmp_path / "lake"), "--append", "--replace")


def test_options_come_on_top_of_the_mapping_file(write):
    from pathlib import Path

    text = "map: {user_id: u, item_id: i}\ntime_format: ms\nitems: {source: a.csv}\n"
    text += "filters: [{name: one, column: c, drop_if: missing}]\n"
    mapping = build_mapping(
        Path(write("m.yaml", text)),
        {
            "map": {"item_id": "sku"},
            "time_format": "s",
            "filters": drop_rules(["two: c in a, b"]),
            "items": {"map": {"item_id": "x"}},
            "users": {},
        },
    )
    assert mapping.map == {"user_id": "u", "item_id": "sku"}
    assert mapping.time_format == "s"
    assert [(rule.name, rule.value) for rule in mapping.filters] == [
        ("one", None),
        ("two", ("a", "b")),
    ]
    assert mapping.items is not None
    assert (mapping.items.source, mapping.items.map) == ("a.csv", {"item_id": "x"})
    assert mapping.users is None


def test_an_unknown_key_names_the_line_and_the_nearest_key(write):
    path = write("m.yaml", "map:\n  user_id: u\nitems:\n  soruce: a.csv\n")
    with pytest.raises(ConfigError) as caught:
        load_yaml(path, IngestMapping)
    assert "m.yaml:4" in str(caught.value)
    assert "did you mean 'source'?" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pairs(["user_id"], "--map"), "not NAME=VALUE"),
        (lambda: drop_rules(["Quantity at_most 0"]), "not a rule"),
        (lambda: drop_rules(["r: Quantity at_mots 0"]), "did you mean 'at_most'"),
        (lambda: drop_rules(["r: Quantity at_most none"]), "takes a number"),
        (lambda: build_mapping(None, {"filters": drop_rules(["r: a matches ["])}), "expression"),
        (lambda: build_mapping(None, {"filters": drop_rules(["r: a equals"])}), "takes a text"),
        (lambda: build_mapping(None, {"kind": "graph"}), "kind"),
        (lambda: build_mapping(None, {"time_format": "minutes"}), "pattern with % signs"),
        (
            lambda: build_mapping(None, {"filters": drop_rules(["r: a missing", "r: b missing"])}),
            "same name",
        ),
    ],
)
def test_mistakes_say_what_to_write(call, message):
    with pytest.raises(ConfigError) as caught:
        call()
    assert message in str(caught.value)


def test_every_comparison_drops_what_it_says(lake, write):
    from tasks.ingest import ingest

    text = "user_id,item_id,timestamp,v\n" + "".join(
        f"u{v or 'none'},i,1767225600,{v}\n" for v in ("", "1", "2", "3", "ab", "b")
    )
    kept = {
        "less_than 2": "2 3",
        "at_most 2": "3",
        "greater_than 2": "1 2",
        "at_least 2": "1",
        "equals 2": "1 3 ab b",
        "not_equals 2": "2",
        "starts_with a": "1 2 3 b",
        "matches b$": "1 2 3",
        "in 1,ab": "2 3 b",
        "not_in 1,ab": "1 ab",
        "missing": "1 2 3 ab b",
    }
    source = write("a.csv", text)
    for rule, left in kept.items():
        mapping = IngestMapping.model_validate({"filters": drop_rules([f"r: v {rule}"])})
        ingest(source, lake, mapping, existing="replace")
        published = lake.partition("raw/interactions", date(2026, 1, 1))
        found = set(lake.read_tables(published)["user_id"].to_pylist())
        expected = {f"u{value}" for value in left.split()}
        # A missing value never holds, but for `missing` itself.
        assert found == expected | ({"unone"} if rule != "missing" else set()), rule
