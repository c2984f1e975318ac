"""The validate step: bad days stop the run with a table, good days are checked only once.

Protects the promise that bad data never reaches training, and the cost of a daily run, which
must not grow with the days that were checked before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import data_contracts.check
from data_contracts.result import ContractResult
from tasks import validate
from tasks.contract_report import RESULT
from tasks.errors import ConfigError, ContractError
from tasks.lake import Lake
from tasks.run_spec import RunSpec
from tests.tasks.validated_lake import (
    CONTRACTS,
    FIRST,
    ROWS,
    events,
    pipeline,
    spec_of,
    spoil,
    write,
    write_good_days,
)


def _spec(root: Path, day: date, **data: str) -> RunSpec:
    return spec_of(pipeline(root, **data), day)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Three good days with an items table."""
    write_good_days(tmp_path)
    return tmp_path


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[date | None]:
    """Days whose values are checked, in order."""
    days: list[date | None] = []
    original = data_contracts.check.check_days

    def spy(contract, work, **options):
        days.extend(day.day for day in work)
        return original(contract, work, **options)

    monkeypatch.setattr(data_contracts.check, "check_days", spy)
    return days


def test_days_are_checked_once(lake: Path, checked: list[date | None]) -> None:
    first = validate.run(_spec(lake, FIRST + timedelta(1)))
    assert checked == [FIRST, FIRST + timedelta(1), FIRST]  # two days, and the items of the first
    assert first.facts["days_checked_now"] == 3
    assert first.facts["blocking"] == first.facts["warnings"] == 0
    assert first.facts["contract_versions"] == {
        "interactions": "1.0.0",
        "items": "1.0.0",
        "examples": "1.0.0",
    }
    checked.clear()
    again = validate.run(_spec(lake, FIRST + timedelta(1)))
    assert checked == []
    assert again.digests == first.digests
    next_day = validate.run(_spec(lake, FIRST + timedelta(2)))
    assert checked == [FIRST + timedelta(2)]
    assert set(next_day.outputs) == {
        *(f"interactions/{FIRST + timedelta(n)}" for n in range(3)),
        f"items/{FIRST}",
        "report",
    }


def test_a_delivered_day_and_a_changed_contract_are_checked_again(
    lake: Path, checked: list[date | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = _spec(lake, FIRST + timedelta(1))
    validate.run(spec)
    checked.clear()
    day = FIRST + timedelta(1)
    write(lake, "interactions", day, events(day).slice(0, ROWS - 1))
    validate.run(spec)
    assert checked == [day]
    checked.clear()
    folder = tmp_path_factory.mktemp("contracts")
    for path in CONTRACTS.glob("*.odcs.yaml"):
        (folder / path.name).write_text(path.read_text().replace("maxLength: 256", "maxLength: 99"))
    validate.run(_spec(lake, day, contracts=str(folder)))
    assert checked == [FIRST, day, FIRST]


def test_the_result_lies_beside_the_manifest(lake: Path) -> None:
    step = validate.run(_spec(lake, FIRST + timedelta(1)))
    opened = Lake(str(lake))
    published = opened.open_published(step.outputs[f"interactions/{FIRST}"])
    result = ContractResult.model_validate_json(opened.read_text(published.file(RESULT)))
    assert (result.day, result.rows, result.files) == (FIRST, ROWS, 1)
    assert result.partition_digest == published.manifest.inputs["raw/interactions"]
    assert all(rule.passed for rule in result.rules)
    assert published.manifest.meta == {"blocked": False, "warnings": 0}


def test_a_broken_blocking_rule_stops_the_run_with_a_table(lake: Path) -> None:
    day = spoil(lake)
    for _ in range(2):  # the second time from the published result
        with pytest.raises(ContractError) as caught:
            validate.run(_spec(lake, day))
        headline, _, *table = str(caught.value).splitlines()
        assert headline == f"data contract broken: 1 blocking, 1 warning; interactions {day}"
        assert table[0].split() == [
            *("rule", "column", "file", "found", "expected", "rows", "sample")
        ]
        assert table[2].split() == [
            *("block", "required", "user_id", "a.parquet", "1", "nulls", "no", "nulls", "1")
        ]
        assert table[3].split()[:4] == ["warn", "unknown", "column", "price"]


def test_warn_lets_the_run_go_on_and_tells(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = spoil(lake)
    step = validate.run(_spec(lake, day, validation="warn"))
    assert step.facts["blocking"] == 1
    assert step.facts["warnings"] == 1
    assert step.facts["broken_rules"] == [
        f"interactions {day}: required user_id",
        f"interactions {day}: unknown column price",
    ]
    assert "1 nulls" in capsys.readouterr().err


def test_off_checks_nothing(lake: Path, checked: list[date | None]) -> None:
    step = validate.run(_spec(lake, spoil(lake), validation="off"))
    assert (checked, step.outputs, step.facts) == ([], {}, {"validation": "off"})


def test_a_file_that_is_not_parquet_is_in_the_table(lake: Path) -> None:
    day = FIRST + timedelta(1)
    path = lake / "raw" / "interactions" / f"dt={day}" / "a.parquet"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ContractError, match=r"readable +a\.parquet +cut off: 300 bytes"):
        validate.run(_spec(lake, day))


def test_a_marker_without_files_is_in_the_table(lake: Path) -> None:
    day = FIRST + timedelta(1)
    (lake / "raw" / "interactions" / f"dt={day}" / "a.parquet").unlink()
    with pytest.raises(ContractError, match=r"files +no Parquet file"):
        validate.run(_spec(lake, day))


def test_an_id_type_that_changes_between_days_blocks(lake: Path) -> None:
    day = FIRST + timedelta(1)
    users = pa.array(range(ROWS), pa.int64())
    write(lake, "interactions", day, events(day, user_id=users))
    with pytest.raises(ContractError, match="type differs between days"):
        validate.run(_spec(lake, day))


def test_a_day_without_a_partition_is_left_out(lake: Path) -> None:
    step = validate.run(_spec(lake, FIRST + timedelta(4)))
    assert [name for name in step.outputs if name.startswith("interactions")] == [
        f"interactions/{FIRST + timedelta(n)}" for n in range(3)
    ]


def test_a_missing_contract_is_an_error_of_the_configuration(lake: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the data set interactions has no contract"):
        validate.run(_spec(lake, FIRST, contracts=str(tmp_path / "none")))


def test_nothing_new_does_not_import_great_expectations(lake: Path) -> None:
    spec = _spec(lake, FIRST + timedelta(1))
    validate.run(spec)
    code = f"""
        import sys
        from tasks import validate
        from tasks.run_spec import RunSpec
        step = validate.run(RunSpec.model_validate_json({spec.model_dump_json()!r}))
        assert step.facts["days_checked_now"] == 0
        heavy = {{"great_expectations", "pandas", "duckdb", "distributed"}} & set(sys.modules)
        sys.exit(f"imported {{heavy}}" if heavy else 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=False,
        capture_output=True,
        text=True,
        cwd=CONTRACTS.parent,
    )
    assert done.returncode == 0, done.stderr


def test_a_refused_delivery_is_on_record_and_its_files_stay(lake: Path) -> None:
    day = spoil(lake)
    raw = lake / "raw" / "interactions" / f"dt={day}"
    before = {path.name: path.read_bytes() for path in raw.iterdir()}
    for _ in range(2):
        with pytest.raises(ContractError, match=r"on record: .*/quarantine/interactions/dt="):
            validate.run(_spec(lake, day))
    (path,) = (lake / "quarantine").rglob("*.json")
    record = json.loads(path.read_text())
    partition = Lake(str(lake)).partition("raw/interactions", day)
    assert partition is not None
    assert record["manifest_digest"] == partition.digest
    assert record["manifest"]["files"][0]["path"] == "a.parquet"
    assert [rule["rule"] for rule in record["broken"]] == ["required", "unknown column"]
    assert record["contract_version"] == "1.0.0"
    assert {path.name: path.read_bytes() for path in raw.iterdir()} == before
    # Delivered again and good: the run goes on, and the refused delivery stays on record.
    write(lake, "interactions", day, events(day))
    assert validate.run(_spec(lake, day)).facts["blocking"] == 0
    assert path.is_file()


def test_warnings_only_put_nothing_on_record(lake: Path) -> None:
    validate.run(_spec(lake, spoil(lake), validation="warn"))
    assert not (lake / "quarantine").exists()


def test_unseen_ids_are_told_from_the_counts_of_days_checked_before(lake: Path) -> None:
    for n in range(3, 5):
        day = FIRST + timedelta(n)
        write(lake, "interactions", day, events(day))
    validate.run(_spec(lake, FIRST + timedelta(3)))
    last = FIRST + timedelta(4)
    items = pa.array([f"new {n}" for n in range(ROWS - 2)] + ["i0", "i1"])
    write(lake, "interactions", last, events(last, item_id=items))
    step = validate.run(_spec(lake, last))
    assert step.facts["days_checked_now"] == 1
    assert step.facts["broken_rules"] == [f"interactions {last}: unseen values item_id"]
    (rule,) = validate.read_result(
        Lake(str(lake)), Lake(str(lake)).open_published(step.outputs[f"interactions/{last}"])
    ).broken
    assert rule.found == "90 % unseen"
