"""Runs the ranks on this machine with torchrun, in a session of their own.

A session of its own, because a scheduler that loses its task kills the task's whole process
group; training must outlive that and be found again by the retry.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tasks.launch.protocol import JobStatus
from tasks.version import PROJECT_ROOT

_LOG = "train.log"
_EXIT = "exit_status"
_GRACE_SECONDS = 10.0

# Torch elastic gives every rank a session of its own, so neither the process group nor the
# session tells which processes belong to a job; an inherited variable does, also for ranks
# whose agent was killed.
_JOB = "TAILTOWER_JOB"

# Only a parent can wait for a process; the shell leaves the exit status where others find it.
_WRAPPER = '"$@"; status=$?; echo $status > "$TAILTOWER_JOB/exit_status.new"; \
mv "$TAILTOWER_JOB/exit_status.new" "$TAILTOWER_JOB/exit_status"; exit $status'


class LocalLauncher:
    """Torchrun on this machine.

    Args:
        worker: Module that every rank runs with `--job FOLDER/job.json`.
    """

    def __init__(self, worker: str = "tasks.train_worker") -> None:
        self._worker = worker

    def submit(self, folder: Path, nproc: int, max_restarts: int, threads: int) -> None:
        """Starts torchrun unless the job is running already; stray ranks are ended first."""
        with _locked(folder):
            if self.status(folder) is JobStatus.RUNNING:
                return
            _end(folder)
            (folder / _EXIT).unlink(missing_ok=True)
            command = [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                f"--nproc-per-node={nproc}",
                f"--max-restarts={max_restarts}",
                *("-m", self._worker, "--job", str(folder / "job.json")),
            ]
            search_path = [str(PROJECT_ROOT), os.environ.get("PYTHONPATH")]
            environment = {
                **os.environ,
                _JOB: str(folder),
                "OMP_NUM_THREADS": str(threads),
                "PYTHONPATH": os.pathsep.join(filter(None, search_path)),
            }
            with (folder / _LOG).open("ab") as log:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", _WRAPPER, "sh", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            # Collects the exit status, so that an ended job is no zombie of a living caller.
            threading.Thread(target=process.wait, daemon=True).start()
            # The child shows the variable only once it has become the shell.
            while process.poll() is None and not _members(folder):
                time.sleep(0.01)

    def status(self, folder: Path) -> JobStatus:
        """State of the job; it runs as long as its agent, not merely a rank, is alive."""
        if any(_is_agent(process) for process in _members(folder)):
            return JobStatus.RUNNING
        exit_file = folder / _EXIT
        if exit_file.exists():
            done = exit_file.read_text().strip() == "0"
            return JobStatus.SUCCEEDED if done else JobStatus.FAILED
        return JobStatus.FAILED if (folder / _LOG).exists() else JobStatus.ABSENT

    def cancel(self, folder: Path) -> None:
        """Ends all processes of the job: asks first, kills after a grace period."""
        with _locked(folder):
            _end(folder)

    def logs(self, folder: Path) -> Path:
        """The job's log file."""
        return folder / _LOG


def job_processes(folder: Path) -> list[int]:
    """Ids of the job's living processes: shell, agent and ranks."""
    return [process.pid for process in _members(folder)]


def _members(folder: Path) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(_JOB) == str(folder):
                members.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return members


def _is_agent(process: psutil.Process) -> bool:
    try:
        return "torch.distributed.run" in process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _end(folder: Path) -> None:
    for force in (False, True):
        members = _members(folder)
        for process in members:
            try:
                process.kill() if force else process.terminate()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(members, timeout=_GRACE_SECONDS)
        if not _members(folder):
            return


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One caller at a time: two retries must not start two jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
        yield
