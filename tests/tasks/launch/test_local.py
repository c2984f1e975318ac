"""A training job outlives its caller, is found again, never runs twice and leaves no process."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tasks.launch import JobShape, JobStatus, LocalLauncher
from tasks.launch.supervised import job_processes
from tasks.version import PROJECT_ROOT

pytestmark = pytest.mark.faults
LAUNCHER = LocalLauncher("tests.tasks.launch.dummy_worker")
ONE, TWO = JobShape(ranks_per_node=1), JobShape(ranks_per_node=2)


@pytest.fixture
def job(tmp_path):
    def make(**what):
        (tmp_path / "job.json").write_text(json.dumps(what))
        return tmp_path

    yield make
    LAUNCHER.cancel(tmp_path)
    assert job_processes(tmp_path) == []


def _wait(condition, seconds=40):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def _ranks(folder):
    return [int(path.name.rsplit("-", 1)[1]) for path in folder.glob("rank-*")]


@pytest.mark.parametrize(("code", "status"), [(0, JobStatus.SUCCEEDED), (3, JobStatus.FAILED)])
def test_end_of_a_job_is_known_to_every_caller(job, code, status):
    folder = job(exit=code)
    assert LAUNCHER.status(folder) is JobStatus.ABSENT
    LAUNCHER.submit(folder, ONE)
    assert LAUNCHER.status(folder) is JobStatus.RUNNING
    _wait(lambda: LAUNCHER.status(folder) is not JobStatus.RUNNING)
    assert LAUNCHER.status(folder) is status
    assert [path.name for path in LAUNCHER.logs(folder)] == ["train.log"]


def test_second_submission_meets_the_first_job(job):
    folder = job(hold=True)
    for _ in range(3):
        LAUNCHER.submit(folder, TWO)
    _wait(lambda: len(_ranks(folder)) == 2)
    (folder / "go").touch()
    _wait(lambda: LAUNCHER.status(folder) is JobStatus.SUCCEEDED)
    assert len(_ranks(folder)) == 2


def test_job_outlives_the_killed_process_group_of_its_caller(job):
    folder = job(hold=True)
    script = (
        "import sys, time; from pathlib import Path\n"
        "from tasks.launch import JobShape, LocalLauncher\n"
        "launcher = LocalLauncher('tests.tasks.launch.dummy_worker')\n"
        "launcher.submit(Path(sys.argv[1]), JobShape())\n"
        "print('submitted', flush=True); time.sleep(60)"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert caller.stdout is not None
    assert caller.stdout.readline() == b"submitted\n"
    os.killpg(caller.pid, signal.SIGKILL)
    caller.wait()
    caller.stdout.close()
    assert LAUNCHER.status(folder) is JobStatus.RUNNING
    _wait(lambda: _ranks(folder))
    (folder / "go").touch()
    _wait(lambda: LAUNCHER.status(folder) is JobStatus.SUCCEEDED)


@pytest.mark.parametrize("deaf", [False, True])
def test_cancel_leaves_no_process(job, deaf, monkeypatch):
    monkeypatch.setattr("tasks.launch.supervised._GRACE_SECONDS", 2.0)
    folder = job(hold=True, deaf=deaf)
    LAUNCHER.submit(folder, TWO)
    _wait(lambda: len(_ranks(folder)) == 2)
    LAUNCHER.cancel(folder)
    assert job_processes(folder) == []
    assert not any(psutil.pid_exists(pid) for pid in _ranks(folder))
    assert LAUNCHER.status(folder) is JobStatus.FAILED


def test_ranks_left_by_a_killed_agent_are_ended_before_the_next_start(job):
    folder = job(hold=True)
    LAUNCHER.submit(folder, ONE)
    _wait(lambda: _ranks(folder))
    (rank,) = _ranks(folder)
    for pid in job_processes(folder):
        if pid != rank:
            os.kill(pid, signal.SIGKILL)
    _wait(lambda: LAUNCHER.status(folder) is JobStatus.FAILED)
    assert psutil.pid_exists(rank)
    LAUNCHER.submit(folder, ONE)
    assert not psutil.pid_exists(rank)
    _wait(lambda: len(_ranks(folder)) == 2)
