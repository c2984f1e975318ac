"""A training job is found by run and role alone, whatever became of the process that started it."""

import json
from datetime import date

import pytest

from tasks.cli import main
from tasks.config_file import load_config
from tasks.errors import ConfigError
from tasks.lake import Lake
from tasks.launch.attempts import Attempt
from tasks.resolve_run import resolve
from tasks.training_job import job_folder
from tasks.version import PROJECT_ROOT


@pytest.fixture
def spec(tmp_path, mlflow_uri):
    overrides = [f"lake={tmp_path / 'lake'}", f"tracking.uri={mlflow_uri}"]
    config = load_config(PROJECT_ROOT / "conf" / "demo.yaml", overrides)
    for day in (1, 2):
        Lake(config.lake).write_text(f"raw/interactions/dt=2026-01-{day:02d}/_SUCCESS", "")
    return resolve(config, date(2026, 1, 2))


def ask(spec, *role):
    return main(["step", "job_status", "--run-spec", spec.uri, *role])


@pytest.mark.parametrize(
    ("ended_with", "status"),
    [(None, "absent"), ("0", "succeeded"), ("1", "failed"), ("", "failed")],
)
def test_the_state_of_a_job_is_told(spec, capsys, ended_with, status):
    if ended_with is not None:
        attempt = Attempt.begin(job_folder(spec, "candidate"), {})
        # A machine that failed leaves no status.
        if ended_with:
            (attempt.folder / "exit_status").write_text(f"{ended_with}\n")
    assert ask(spec, "--role", "candidate") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"job": f"checkpoints/{spec.run_id}/candidate", "status": status}


def test_a_role_must_be_named(spec):
    assert ask(spec) == ConfigError.exit_code
