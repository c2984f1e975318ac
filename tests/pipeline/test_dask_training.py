"""The train step over two Dask workers, killed on its way: the model of a local run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tasks.resolve_run import resolve
from tasks.steps import STEPS, execute
from tasks.training_job import job_folder, job_status
from tasks.version import PROJECT_ROOT
from tests.tasks.launch.dask_cluster import cluster_here, wait_for
from tests.tasks.local_stack.helpers import free_port

pytestmark = [
    *(pytest.mark.faults, pytest.mark.integration),
    *(pytest.mark.slow, pytest.mark.timeout(600)),
]
ROLE = "candidate"
SLOW = ("training.epochs=4", "training.checkpoint_every=2", "training.max_restarts=4")


def _prepared(config):
    spec = resolve(config, date(2026, 1, 4))
    for step in STEPS[: [step.name for step in STEPS].index("train")]:
        execute(spec, step.name)
    return spec


def _start_train(spec, log):
    with log.open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "tasks", "train", "--run-spec", spec.uri, "--role", ROLE],
            cwd=PROJECT_ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )


def _tensors(spec):
    published = spec.output("train.candidate", "model")
    folder = Path(spec.lake().abspath(published.file("bundle.json"))).parent
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        for name, value in load_file(path).items():
            found[f"{path.relative_to(folder)}:{name}"] = value
    return found


def test_the_step_trains_over_workers_is_killed_and_finds_its_job(small_pipeline, tmp_path):
    log = tmp_path / "step.log"
    with cluster_here(tmp_path / "cluster", free_port(), workers=2) as cluster:
        address = cluster.settings.scheduler
        launch = (f"dask.scheduler={address}", "launch.kind=dask", "launch.nodes=2")
        spec = _prepared(small_pipeline("spread", *SLOW, *launch))
        folder = job_folder(spec, ROLE)
        process = _start_train(spec, log)

        def has_checkpoint():
            assert process.poll() is None, log.read_text()
            return list((folder / "checkpoints").glob("step-*/complete.json"))

        wait_for(has_checkpoint, "a checkpoint", 120)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        assert job_status(spec, ROLE).value == "running"
        process = _start_train(spec, log)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, log.read_text()
    assert json.loads(out.splitlines()[-1])["step"] == "train.candidate"
    # The second step followed the first one's job.
    assert [path.name for path in (folder / "attempts").iterdir()] == ["0001"]
    assert "train.found" in log.read_text()
    assert "2 ranks" in log.read_text()

    alone = _prepared(small_pipeline("alone", *SLOW))
    execute(alone, "train", ROLE)
    spread, expected = _tensors(spec), _tensors(alone)
    assert spread.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(spread[name] - value).max() < 1e-3, name
