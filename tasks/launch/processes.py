"""Processes that outlive their caller, and all of whose kin can be found and ended.

Torch elastic gives every rank a session of its own, so neither the process group nor the session
tells which processes belong to a job. An inherited environment variable does, also for ranks
whose agent was killed.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tasks.version import PROJECT_ROOT

JOB = "TAILTOWER_JOB"
"""Variable of the processes of a job on the machine that submitted it: the job's folder."""
NODE = "TAILTOWER_NODE"
"""Variable of the processes of a node: the file of its record."""

# Only a parent can wait for a process; the shell leaves the exit status where others find it.
_WRAPPER = 'status_file=$1; shift; "$@"; status=$?; echo $status > "$status_file.new"; \
mv "$status_file.new" "$status_file"; exit $status'


def start_detached(
    command: Sequence[str],
    *,
    marker: tuple[str, str],
    log: Path,
    status_file: Path,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Starts a command in a session of its own; returns when it can be found by its marker.

    Args:
        command: Program and arguments.
        marker: Variable and value that it and its kin carry.
        log: File that its output is appended to.
        status_file: Where its exit status is left.
        environment: Further variables.
    """
    name, value = marker
    search_path = [str(PROJECT_ROOT), os.environ.get("PYTHONPATH")]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, search_path)),
        **(environment or {}),
        name: value,
    }
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WRAPPER, "sh", str(status_file), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
    # Collects the exit status, so that an ended command is no zombie of a living caller.
    threading.Thread(target=process.wait, daemon=True).start()
    # The child shows the variable only once it has become the shell.
    while process.poll() is None and not members(marker):
        time.sleep(0.01)


def members(marker: tuple[str, str]) -> list[psutil.Process]:
    """Living processes that carry a marker."""
    name, value = marker
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(name) == value:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return found


def end(marker: tuple[str, str], grace_seconds: float) -> None:
    """Ends all processes that carry a marker: asks first, kills after a grace period."""
    for force in (False, True):
        kin = members(marker)
        for process in kin:
            try:
                process.kill() if force else process.terminate()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(kin, timeout=grace_seconds)
        if not members(marker):
            return


def thread_variables(threads: int | None, ranks: int) -> dict[str, str]:
    """Variables that give a rank its compute threads.

    Workers of Dask are started with one thread in all of them, and what they start inherits that.

    Args:
        threads: Threads of a rank; None for its share of this machine's cores.
        ranks: Ranks on this machine.
    """
    threads = threads or max(1, len(os.sched_getaffinity(0)) // ranks)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads))
