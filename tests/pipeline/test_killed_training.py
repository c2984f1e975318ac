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

from tasks.errors import TrainingError
from tasks.launch.local import job_processes
from tasks.resolve_run import resolve
from tasks.steps import STEPS, execute
from tasks.version import PROJECT_ROOT

pytestmark = [
    *(pytest.mark.faults, pytest.mark.integration),
    *(pytest.mark.slow, pytest.mark.timeout(900)),
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


def _wait_for_checkpoint(folder, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not list((folder / "checkpoints").glob("step-*")):
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
    _wait_for_checkpoint(folder, process)
    for pid in job_processes(folder):
        os.kill(pid, signal.SIGKILL)
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
