"""A training that is killed half-way ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest
import yaml

from tasks.demo_command import DAG_ID
from tasks.errors import TrainingError
from tasks.launch.supervised import job_processes
from tasks.local_stack import commands
from tasks.local_stack.airflow_client import AirflowClient
from tasks.local_stack.settings import StackSettings
from tasks.resolve_run import resolve
from tasks.steps import STEPS, execute
from tasks.version import PROJECT_ROOT
from tests.tasks.local_stack.helpers import free_port

pytestmark = [
    *(pytest.mark.faults, pytest.mark.integration),
    *(pytest.mark.slow, pytest.mark.timeout(1800)),
]

# Long enough to be caught in the middle, with many checkpoints.
SLOW = ("training.epochs=6", "training.checkpoint_every=2", "training.log_every=2")


def _prepared(config):
    spec = resolve(config, date(2026, 1, 4))
    for step in STEPS:
        if step.name == "train":
            return spec
        execute(spec, step.name)
    raise AssertionError("no train step")


def _start_train(spec):
    return subprocess.Popen(
        [sys.executable, "-m", "tasks", "train", "--run-spec", spec.uri, "--role", "candidate"],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait_for_checkpoint(folder, goes_on, seconds=120):
    deadline = time.monotonic() + seconds
    while not list((folder / "checkpoints").glob("step-*")):
        assert goes_on(), "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _kill_ranks(folder):
    ranks = job_processes(folder)
    assert ranks
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)


def _weights(spec):
    published = spec.output("train.candidate", "model")
    bundle = json.loads(Path(spec.lake().abspath(published.file("bundle.json"))).read_text())
    return {
        name: part["sha256"]
        for name, part in bundle["parts"].items()
        if name.endswith(".safetensors")
    }


def test_killed_ranks_and_killed_step_resume_to_the_same_weights(small_pipeline):
    config = small_pipeline("killed", *SLOW)
    spec = _prepared(config)
    folder = spec.lake().local_path(f"checkpoints/{spec.run_id}/candidate")

    # The whole job dies: the step says so and may be retried.
    process = _start_train(spec)
    _wait_for_checkpoint(folder, lambda: process.poll() is None)
    _kill_ranks(folder)
    process.communicate(timeout=60)
    assert process.returncode == TrainingError.exit_code
    assert TrainingError.transient

    # The step's process group dies, as when a scheduler kills its task; the job goes on.
    process = _start_train(spec)
    deadline = time.monotonic() + 60
    while not job_processes(folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert job_processes(folder)

    # The next attempt ends the work.
    process = _start_train(spec)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert json.loads(out.splitlines()[-1])["step"] == "train.candidate"
    assert not job_processes(folder)

    undisturbed = _prepared(small_pipeline("undisturbed", *SLOW))
    execute(undisturbed, "train", "candidate")
    assert _weights(spec) == _weights(undisturbed)


@pytest.fixture
def own_airflow(tmp_path):
    """Airflow and MLflow of this test alone, with the real DAGs."""
    settings = StackSettings(
        root=tmp_path,
        dags_folder=PROJECT_ROOT / "dags",
        ports={name: free_port() for name in ("airflow", "execution", "mlflow")},
        pipeline_config=tmp_path / "killed.yaml",
    )
    yield settings
    commands.down(settings)


def test_a_training_killed_under_airflow_is_retried_to_the_same_weights(
    small_pipeline, own_airflow, tmp_path
):
    config = small_pipeline("killed", *SLOW)
    (tmp_path / "killed.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    day = date(2026, 1, 4)
    spec = resolve(config, day)
    folder = spec.lake().local_path(f"checkpoints/{spec.run_id}/candidate")

    with AirflowClient.of_stack(commands.up(own_airflow)) as airflow:
        airflow.wait_for_dag(DAG_ID)
        airflow.unpause(DAG_ID)
        parameters = {"day": day.isoformat(), "config": str(tmp_path / "killed.yaml")}
        run = airflow.trigger(DAG_ID, "killed", parameters=parameters)
        _wait_for_checkpoint(
            folder, lambda: not airflow.dag_run(DAG_ID, run.run_id).is_over, seconds=300
        )
        _kill_ranks(folder)
        assert airflow.wait_for_run(DAG_ID, run.run_id, timeout=900).state == "success"
        tries = {
            task.map_index: task.try_number
            for task in airflow.task_instances(DAG_ID, run.run_id)
            if task.task_id.endswith("train")
        }
        assert sorted(tries.values()) == [1, 1, 2], tries

    undisturbed = _prepared(small_pipeline("undisturbed", *SLOW))
    execute(undisturbed, "train", "candidate")
    assert _weights(spec) == _weights(undisturbed)
