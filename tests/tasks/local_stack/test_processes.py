"""Finding and stopping processes, with real ones."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from tasks.local_stack.processes import (
    ProcessRecord,
    is_running,
    members,
    read_record,
    start,
    stop,
    write_record,
)
from tests.tasks.local_stack.helpers import wait_for

SLEEP = "import time; time.sleep(600)"
# Says that its handler is in place, then ignores SIGTERM.
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
# A child in the same session and one in a session of its own, like a task and its training.
FAMILY = """
import pathlib, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
near = subprocess.Popen(sleep)
far = subprocess.Popen(sleep, start_new_session=True)
pathlib.Path(sys.argv[1] + ".new").write_text(f"{near.pid} {far.pid}")
pathlib.Path(sys.argv[1] + ".new").rename(sys.argv[1])
time.sleep(600)
"""

Starter = Callable[..., ProcessRecord]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Starter]:
    started: list[ProcessRecord] = []

    def starter(code: str, *arguments: str) -> ProcessRecord:
        record = start(
            [sys.executable, "-c", code, *arguments],
            environment=os.environ,
            folder=tmp_path,
            log=tmp_path / "service.log",
            fingerprint="f",
        )
        started.append(record)
        return record

    yield starter
    for record in started:
        stop(record, timeout=1)


def test_a_started_process_is_found_again_from_its_record_alone(run, tmp_path):
    record = run(SLEEP)
    write_record(tmp_path / "service.pid", record)
    again = read_record(tmp_path / "service.pid")
    assert again is not None
    assert again == record
    assert is_running(again)
    assert os.getsid(record.pid) == record.pid


@pytest.mark.parametrize("content", ["", "1234", "{}", '{"pid": 1, "surprise": 2}'])
def test_a_damaged_record_counts_as_none(tmp_path, content):
    (tmp_path / "x.pid").write_text(content)
    assert read_record(tmp_path / "x.pid") is None


def test_a_process_that_ended_is_not_running(run):
    record = run("pass")
    wait_for(lambda: not is_running(record))
    assert members(record) == []
    assert stop(record, timeout=1) is False


@pytest.mark.parametrize(
    "change",
    [{"created": 1000.0}, {"executable": "/usr/bin/something-else"}],
    ids=["started at another time", "another program"],
)
def test_a_recycled_pid_is_neither_found_nor_killed(run, change):
    stranger = run(SLEEP)
    ours = replace(stranger, **change)
    assert not is_running(ours)
    assert members(ours) == []
    assert stop(ours, timeout=1) is False
    assert is_running(stranger)


def test_a_process_that_leads_no_session_is_not_one_of_ours():
    me = psutil.Process()
    if os.getsid(me.pid) == me.pid:
        pytest.skip("this test process leads its own session")
    record = ProcessRecord(me.pid, me.create_time(), os.path.realpath(me.exe()), "f")
    assert not is_running(record)
    assert members(record) == []


def test_stop_takes_children_of_the_session_and_beyond(run, tmp_path):
    record = run(FAMILY, str(tmp_path / "children"))
    wait_for((tmp_path / "children").exists)
    near, far = map(int, (tmp_path / "children").read_text().split())
    assert {record.pid, near, far} == {process.pid for process in members(record)}
    assert stop(record, timeout=5)
    assert not any(_lives(pid) for pid in (record.pid, near, far))


def test_children_are_found_after_their_leader_was_killed(run, tmp_path):
    record = run(FAMILY, str(tmp_path / "children"))
    wait_for((tmp_path / "children").exists)
    near, far = map(int, (tmp_path / "children").read_text().split())
    os.kill(record.pid, signal.SIGKILL)
    wait_for(lambda: not is_running(record))
    assert near in {process.pid for process in members(record)}
    assert stop(record, timeout=5)
    assert not _lives(near)
    # Its parent is gone and its session is its own: nothing tells it from a stranger's.
    os.kill(far, signal.SIGKILL)


@pytest.mark.parametrize("attempt", range(5))
def test_a_leader_that_is_just_ending_does_not_hide_its_children(run, tmp_path, attempt):
    record = run(FAMILY, str(tmp_path / "children"))
    wait_for((tmp_path / "children").exists)
    near, far = map(int, (tmp_path / "children").read_text().split())
    os.kill(record.pid, signal.SIGKILL)
    # No pause: for a moment the kernel still lists the leader, without its program.
    stop(record, timeout=5)
    assert not _lives(near)
    if _lives(far):
        os.kill(far, signal.SIGKILL)


def test_a_process_that_ignores_sigterm_is_killed(run, tmp_path):
    record = run(STUBBORN, str(tmp_path / "deaf"))
    wait_for((tmp_path / "deaf").exists)
    began = time.monotonic()
    assert stop(record, timeout=0.5)
    assert time.monotonic() - began < 5
    assert not _lives(record.pid)


def test_the_log_of_the_start_before_is_kept(run, tmp_path):
    for text in ("first", "second"):
        wait_for(partial(_has_ended, run(f"print({text!r})")))
    assert (tmp_path / "service.log").read_text() == "second\n"
    assert (tmp_path / "service.previous.log").read_text() == "first\n"


def _has_ended(record: ProcessRecord) -> bool:
    return not is_running(record)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
