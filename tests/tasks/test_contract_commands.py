"""`tailtower contract`: checks of files outside the lake, drafts, and differences of contracts."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.contract_commands import app
from tasks.errors import ConfigError, ContractError, DataError

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


def _orders(root: Path) -> str:
    table = pa.table({"order": range(120), "shop": ["a", "b"] * 60, "price": [1.5] * 120})
    return _file(root / "orders" / "dt=2026-01-02" / "x.parquet", table)


def test_a_draft_is_kept_by_its_data_and_an_edit_of_it_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _orders(tmp_path)
    contract = tmp_path / "orders.odcs.yaml"
    app(["infer", str(tmp_path / "orders"), "--output", str(contract)], standalone_mode=False)
    assert "read and correct it" in capsys.readouterr().err
    _check(path, "--contract", str(contract))
    assert "contract kept, 0 warnings: 120 rows" in capsys.readouterr().err
    text = contract.read_text()
    assert "name: orders\n" in text
    edited = tmp_path / "edited.yaml"
    edited.write_text(text.replace("- b\n", "- c\n").replace("severity: warn", "severity: block"))
    with pytest.raises(ContractError, match=r"valid values +shop .* one of a, c +60"):
        _check(path, "--contract", str(edited))
    with pytest.raises(ConfigError, match="there already"):
        app(["infer", path, "--output", str(contract)], standalone_mode=False)


def test_a_draft_goes_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app(["infer", _orders(tmp_path), "--name", "sales"], standalone_mode=False)
    assert "id: sales\n" in capsys.readouterr().out


def test_nothing_to_draft_from_is_an_error_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"a,b\n")
    with pytest.raises(DataError, match="not Parquet"):
        app(["infer", str(tmp_path / "x.parquet")], standalone_mode=False)
    with pytest.raises(ConfigError, match="nothing is there"):
        app(["infer", str(tmp_path / "none")], standalone_mode=False)


def test_differences_are_listed_and_strict_ends_with_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    app(["infer", _orders(tmp_path), "--output", str(old)], standalone_mode=False)
    capsys.readouterr()
    text = old.read_text()
    new.write_text(text.replace("maxLength: 1", "maxLength: 9").replace("        - b\n", ""))
    app(["diff", str(old), str(new)], standalone_mode=False)
    out = capsys.readouterr().out
    assert "! rule length of shop: length 1 to 1 (block) → length 1 to 9 (block)" in out
    assert "breaks readers" in out
    assert "  rule valid values of shop: one of a, b (warn) → one of a (warn)\n" in out
    assert "2 changes, 1 breaking: 0.1.0 → 0.1.0" in out
    assert "another first number of the version" in out
    with pytest.raises(ContractError, match="1 changes break somebody"):
        app(["diff", str(old), str(new), "--strict"], standalone_mode=False)
    app(["diff", str(old), str(old), "--strict"], standalone_mode=False)
    assert capsys.readouterr().out.endswith("0 changes, 0 breaking: 0.1.0 → 0.1.0\n")
