"""Starting service processes, finding them again from another process, and stopping them.

A record on disk outlives the process it names, and the kernel gives the number to somebody else
sooner or later. So a record holds what a recycled number cannot imitate: when the process
started and which interpreter it runs; and a service leads a session of its own, which also finds
its children when the leader is dead. The command line is no help: Airflow rewrites its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum, auto
from pathlib import Path

import psutil

# The kernel counts in hundredths of a second since boot; the wall clock that is added to it may
# be corrected while a service runs.
_CLOCK_SLACK = 2.0
_POLL = 0.05


@dataclass(frozen=True)
class ProcessRecord:
    """What is remembered about a started service.

    Attributes:
        pid: Process id; also the id of its session and of its first process group.
        created: Start time in seconds since the epoch.
        executable: Real path of the program.
        fingerprint: Digest of the command and its environment; another one means that the
            service has to be restarted to follow its settings.
        port: Port that it listens on, if any.
    """

    pid: int
    created: float
    executable: str
    fingerprint: str
    port: int | None = None


class _Leader(Enum):
    """What has become of the process of a record."""

    RUNNING = auto()
    GONE = auto()
    FOREIGN = auto()
    """Its number now belongs to another process."""


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    fingerprint: str,
    port: int | None = None,
) -> ProcessRecord:
    """Starts a service in a session of its own, detached from this process and its terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # It is meant to outlive this object; without this Popen would warn when it is collected.
    process.returncode = 0
    handle = psutil.Process(process.pid)
    return ProcessRecord(
        pid=process.pid,
        created=handle.create_time(),
        executable=os.path.realpath(command[0]),
        fingerprint=fingerprint,
        port=port,
    )


def is_running(record: ProcessRecord) -> bool:
    """Whether the very process of this record is alive."""
    return _look_up(record) is _Leader.RUNNING


def members(record: ProcessRecord) -> list[psutil.Process]:
    """The process of a record, what lives in its session, and all their descendants.

    Descendants in a session of their own (a task's training, for instance) are included as long
    as their parents live.
    """
    if _look_up(record) is _Leader.FOREIGN:
        # The kernel does not give away the number of a session that has members: ours has none.
        return []
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            in_session = os.getsid(process.pid) == record.pid
            if in_session and process.create_time() >= record.created - _CLOCK_SLACK:
                found[process.pid] = process
                for child in process.children(recursive=True):
                    found[child.pid] = child
    return [process for process in found.values() if not _is_zombie(process.pid)]


def stop(record: ProcessRecord, *, timeout: float) -> bool:
    """Stops a service with everything that belongs to it; True when there was something to stop.

    SIGTERM goes to the process group first, then to what is left of its members; SIGKILL to those
    that have not ended after `timeout` seconds.
    """
    victims = members(record)
    if not victims:
        _reap(record.pid)
        return False
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(record.pid, signal.SIGTERM)
    left = _wait_for_end(victims, timeout)
    # What its leader left behind, and what was started since the first look.
    left = _alive({process.pid: process for process in [*left, *members(record)]}.values())
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in _wait_for_end(left, min(timeout, 3.0)):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_for_end(left, 5.0)
    _reap(record.pid)
    return True


def write_record(path: Path, record: ProcessRecord) -> None:
    """Writes a record in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(record), indent=2) + "\n")
    temporary.replace(path)


def read_record(path: Path) -> ProcessRecord | None:
    """A record from disk; None when there is none, or none that can be read."""
    try:
        return ProcessRecord(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _look_up(record: ProcessRecord) -> _Leader:
    try:
        process = psutil.Process(record.pid)
        created = process.create_time()
        session = os.getsid(record.pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return _Leader.GONE
    if abs(created - record.created) > _CLOCK_SLACK or session != record.pid:
        return _Leader.FOREIGN
    try:
        executable = process.exe()
    except psutil.Error:
        executable = ""
    # The program of a process that is ending is gone before the process is; that must not be
    # taken for another program, or the children it leaves would be left alone.
    if not executable or _is_zombie(record.pid):
        return _Leader.GONE
    same = os.path.realpath(executable) == record.executable
    return _Leader.RUNNING if same else _Leader.FOREIGN


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    # is_running compares start times, so a number that was given away counts as ended.
    return [p for p in processes if p.is_running() and not _is_zombie(p.pid)]


def _wait_for_end(processes: Iterable[psutil.Process], timeout: float) -> list[psutil.Process]:
    """Waits until all have ended; returns those that have not."""
    deadline = time.monotonic() + timeout
    left = _alive(processes)
    while left and time.monotonic() < deadline:
        time.sleep(_POLL)
        left = _alive(left)
    return left


def _reap(pid: int) -> None:
    """Collects the exit status of a child of this process, so that no zombie stays."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
