"""A scheduler and workers as processes that a test can kill, on this machine or on hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tasks.config import DaskSettings
from tasks.version import PROJECT_ROOT
from tests.certificates import make_certificates

PORT = 8786
DEAD_AFTER = "12s"
"""How long Dask believes in a silent connection here; 30 s by default."""


class Machine(Protocol):
    """Where a process can be started: `tests.hosts.Host` is one."""

    @property
    def address(self) -> str:
        """Its address."""

    def start(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a command in a session of its own."""

    def kill(self, process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
        """Sends a signal to a command and its children."""


class ThisMachine:
    """This machine, on loopback."""

    address = "127.0.0.1"

    def start(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """See `Machine.start`."""
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=PROJECT_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def kill(self, process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
        """See `Machine.kill`."""
        os.killpg(process.pid, number)
        process.wait()


class Cluster:
    """A scheduler and workers.

    Args:
        folder: For logs and certificates; all machines see it.
        scheduler: Machine of the scheduler.
        port: Port of the scheduler.
        encrypted: Whether they talk TLS.
    """

    def __init__(self, folder: Path, scheduler: Machine, port: int, *, encrypted: bool) -> None:
        self.folder = folder
        self._machine, self._port = scheduler, port
        self._tls = make_certificates(folder / "certificates") if encrypted else None
        self.scheduler = self.start_scheduler()

    @property
    def settings(self) -> DaskSettings:
        """As the product's settings name the cluster."""
        protocol = "tcp" if self._tls is None else "tls"
        more: dict[str, Any] = {} if self._tls is None else {"tls": self._tls.settings()}
        return DaskSettings(
            scheduler=f"{protocol}://{self._machine.address}:{self._port}",
            workers_timeout_seconds=60,
            **more,
        )

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        """Starts the scheduler; again after it was killed."""
        options = (f"--host={self._machine.address}", f"--port={self._port}")
        self.scheduler = self._serve(self._machine, "dask_scheduler", *options)
        return self.scheduler

    def kill_scheduler(self) -> None:
        """SIGKILL."""
        self._machine.kill(self.scheduler)
        self.scheduler.wait()

    def start_worker(self, machine: Machine) -> subprocess.Popen[bytes]:
        """Starts a worker, without a nanny that would start it again."""
        options = ("--nthreads=1", "--memory-limit=0", "--no-nanny", f"--host={machine.address}")
        return self._serve(machine, "dask_worker", str(self.settings.scheduler), *options)

    def _serve(self, machine: Machine, module: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{module}", *options, "--no-dashboard"]
        if self._tls is not None:
            files = ("ca-file", self._tls.ca), ("cert", self._tls.cert), ("key", self._tls.key)
            command += [f"--tls-{name}={path}" for name, path in files]
        return machine.start(
            command,
            log=self.folder / f"{module}-{machine.address}.log",
            environment={
                "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": DEAD_AFTER,
                "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": DEAD_AFTER,
            },
        )


@contextmanager
def cluster_here(folder: Path, port: int, workers: int) -> Iterator[Cluster]:
    """A scheduler and workers on this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = ThisMachine()
    cluster = Cluster(folder, machine, port, encrypted=False)
    started = [cluster.start_worker(machine) for _ in range(workers)]
    try:
        yield cluster
    finally:
        for process in (*started, cluster.scheduler):
            if process.poll() is None:
                machine.kill(process)


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> float:
    """Waits until a condition holds; returns how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, f"not in {seconds:g} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - started
