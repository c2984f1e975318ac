"""The table of steps is consistent, and a finished step costs nothing until its inputs change."""

import importlib
import subprocess
import sys
import types
from datetime import date

import pytest

from tasks.config_file import load_config
from tasks.errors import ConfigError, UpstreamError
from tasks.run_spec import RunSpec, StepResult
from tasks.steps import BY_NAME, RESOLVE, STEPS, execute
from tasks.version import PROJECT_ROOT


def test_every_step_follows_what_it_needs():
    seen = {RESOLVE.name}
    for step in STEPS:
        assert set(step.needs) <= seen, f"{step.name} comes before what it needs"
        seen.add(step.name)
    assert [step.name for step in (RESOLVE, *STEPS)] == [
        *("resolve_run", "await_partition", "validate", "count", "vocabulary", "examples"),
        *("train", "evaluate", "compare", "gate", "approve", "publish"),
    ]


def test_every_step_has_a_module_with_run():
    for step in STEPS:
        assert callable(importlib.import_module(f"tasks.{step.name}").run)


def test_command_line_is_light():
    """`--help` and light commands must not pay for torch, Dask, MLflow or Great Expectations."""
    script = (
        "import sys, tasks.cli\n"
        "heavy = {'torch', 'dask', 'mlflow', 'great_expectations', 'airflow', 'polars', 'duckdb'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.fixture
def spec(tmp_path):
    config = load_config(PROJECT_ROOT / "conf" / "demo.yaml", [f"lake={tmp_path}"])
    return RunSpec(
        run_id="2026-01-03-test",
        day=date(2026, 1, 3),
        train_days=(date(2026, 1, 1), date(2026, 1, 2)),
        test_days=(date(2026, 1, 3),),
        config=config,
        code_version="0",
    )


@pytest.fixture
def play(monkeypatch, spec):
    """Replaces the steps' modules by one that writes `content` and counts its calls."""
    calls = []
    content = {"await_partition": b"1", "validate": b"2", "count": b"3"}

    def module(name):
        def run(spec):
            calls.append(name)
            published = spec.lake().publish(
                f"out/{name}",
                lambda output: output.write_bytes("data", content[name]),
                dataset="out",
                day=spec.day,
            )
            return StepResult.of(name, {"data": published})

        return types.SimpleNamespace(run=run)

    monkeypatch.setattr(
        "tasks.steps.importlib.import_module", lambda name: module(name.removeprefix("tasks."))
    )
    return calls, content


def test_finished_steps_are_not_repeated(spec, play):
    calls, _ = play
    with pytest.raises(UpstreamError, match="'await_partition' has not finished"):
        execute(spec, "validate")
    for _ in range(2):
        for name in ("await_partition", "validate", "count"):
            execute(spec, name)
    assert calls == ["await_partition", "validate", "count"]


def test_changed_or_lost_output_repeats_the_step_and_those_after_it(spec, play):
    calls, content = play
    for name in ("await_partition", "validate", "count"):
        execute(spec, name)
    calls.clear()
    spec.lake().delete("out/await_partition")
    content["await_partition"] = b"late data"
    for name in ("await_partition", "validate", "count"):
        execute(spec, name)
    assert calls == ["await_partition", "validate", "count"]


def test_unknown_steps_and_roles_are_named(spec):
    with pytest.raises(ConfigError, match="no step 'cuont'"):
        execute(spec, "cuont")
    with pytest.raises(ConfigError, match="runs for one role"):
        execute(spec, "train", "pilot")
    assert BY_NAME["train"].each_role
