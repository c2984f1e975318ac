"""`tailtower contract check`: files outside the lake, their day, their contract, their outcome."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.contract_commands import app
from tasks.errors import ConfigError, ContractError

DAY_START = (date(2026, 1, 2) - date(1970, 1, 1)).days * 86_400_000_000


def _events(**columns: pa.Array) -> pa.Table:
    times = pa.array([DAY_START, DAY_START + 1]).cast(pa.timestamp("us", tz="UTC"))
    ids = pa.array(["a", "b"])
    return pa.table({"user_id": ids, "item_id": ids, "timestamp": times, **columns})


def _file(path: Path, table: pa.Table) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return str(path)


def _check(*arguments: str) -> None:
    app(["check", *arguments], standalone_mode=False)


def test_a_good_file_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path / "my data é" / "x.parquet", _events())
    _check(path, "--contract", "interactions", "--day", "2026-01-02")
    assert "contract kept, 0 warnings: 2 rows in 1 files" in capsys.readouterr().err


def test_the_path_names_the_contract_and_the_day(tmp_path: Path) -> None:
    folder = tmp_path / "interactions" / "dt=2026-01-09"
    _file(folder / "x.parquet", _events())
    with pytest.raises(ContractError, match="inside the day"):
        _check(str(folder))
    _file(tmp_path / "interactions" / "dt=2026-01-08" / "x.parquet", _events())
    # Two days, so the table names the days of each row.
    with pytest.raises(ContractError, match="interactions 2026-01-08 and 1 more"):
        _check(str(tmp_path / "interactions"))


def test_without_a_day_its_rules_are_left_out_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _check(_file(tmp_path / "x.parquet", _events()), "--contract", "interactions")
    assert "rules about the day were left out" in capsys.readouterr().err


def test_json_lists_every_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path / "x.parquet", _events(price=pa.array([1, 2])))
    _check(path, "--contract", "interactions", "--json")
    result = json.loads(capsys.readouterr().out)
    assert [rule["rule"] for rule in result["rules"] if not rule["passed"]] == ["unknown column"]


def test_a_contract_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    path = _file(tmp_path / "x.parquet", _events())
    with pytest.raises(ConfigError, match="examples, interactions, items, users"):
        _check(path)


def test_a_contract_of_ones_own_names_its_mistakes(tmp_path: Path) -> None:
    contract = tmp_path / "mine.yaml"
    contract.write_text("apiVersion: v3.1.0\nkind: DataContrct\n")
    path = _file(tmp_path / "x.parquet", _events())
    with pytest.raises(ConfigError, match=r"mine\.yaml:"):
        _check(path, "--contract", str(contract))


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is there"):
        _check(str(tmp_path / "none"), "--contract", "interactions")
