"""Protects: a dry run shows what the run would be, with the sizes of an earlier run, and writes
nothing."""

from datetime import date, timedelta
from pathlib import Path

import pytest

from tasks.cli import main
from tasks.preview import known_sizes, predict_training, preview
from tasks.resolve_run import draft
from tasks.tracking.runs import find_run
from tests.tasks.small_runs import TwoDays, write_raw_days

LIMIT = 1000


def _files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def test_a_draft_and_its_plan_write_nothing(two_days: TwoDays) -> None:
    config = two_days.config
    before = _files(Path(config.lake))
    spec = draft(config, two_days.second.day + timedelta(days=1))
    text = preview(spec)
    assert _files(Path(config.lake)) == before
    assert find_run(config, spec.run_id) is None
    assert spec.mlflow_run_id is None
    assert len(text) <= LIMIT
    assert text.startswith(f"**Dry run of {spec.day}")
    assert f"`{spec.run_id}`: new" in text
    assert f"{spec.train_days[0]} … {spec.train_days[-1]} ({len(spec.train_days)} days)" in text
    assert f"version 2 ({two_days.second.day})" in text
    assert f"sizes of `{two_days.second.run_id}`" in text


def test_sizes_are_those_of_the_newest_run(two_days: TwoDays) -> None:
    meta = two_days.second.output("examples", "examples").manifest.meta
    known = known_sizes(two_days.second)
    assert known is not None
    assert known.run_id == two_days.second.run_id
    assert dict(known.table_rows) == meta["table_rows"]
    assert (known.examples, known.items) == (meta["train_rows"], meta["num_items"])
    predicted = predict_training(two_days.second, known)
    # A row of every table: its weights, and one number of its optimizer's state.
    widths = {name: table.dim for name, table in two_days.config.tables.items()}
    tables = sum(rows * widths[name] * 4 for name, rows in meta["table_rows"].items())
    assert predicted.memory.tables == pytest.approx(tables, rel=0.15)
    assert predicted.ranks == 1
    assert predicted.work.examples == (
        two_days.config.training.batch_size * two_days.config.training.accumulate
    )


def test_a_run_that_is_done_is_called_done(two_days: TwoDays) -> None:
    assert "done already" in preview(draft(two_days.config, two_days.second.day))
    assert "new" in preview(draft(two_days.config, two_days.second.day, force=True))


def test_a_first_run_says_what_it_does_not_know(
    tmp_path: Path, mlflow_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    write_raw_days(lake, 4)
    config = tmp_path / "mine.yaml"
    demo = (Path(__file__).parents[2] / "conf/demo.yaml").read_text()
    config.write_text(demo.replace("lake: var/lake", f"lake: {lake}"))
    day = date(2026, 1, 4).isoformat()
    arguments = [
        "step",
        "resolve_run",
        "--config",
        str(config),
        "--day",
        day,
        "--set",
        f"tracking.uri={mlflow_uri}",
    ]
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "time: unknown before the first run" in shown
    assert not (lake / "runs").exists()
