"""Brings a set of services up, completes it when a part is missing, and takes it down."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from tasks.local_stack.errors import StackError, log_tail
from tasks.local_stack.processes import (
    ProcessRecord,
    is_running,
    start,
    stop,
    write_record,
)
from tasks.local_stack.services import Service, process_environment
from tasks.local_stack.state import read_records, record_path
from tasks.progress import log

_POLL = 0.25


class Supervisor:
    """Starts and stops the services of one working folder.

    It does not stay: services run on their own, and the next supervisor finds them by their
    records.

    Args:
        root: The working folder.
        start_timeout: Seconds that one service may take to become ready.
        stop_timeout: Seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, root: Path, *, start_timeout: float, stop_timeout: float) -> None:
        self._root = root
        self._run_folder = root / "var" / "run"
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._given_up = threading.Event()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds off other supervisors of the same folder; a dead one's hold ends with it."""
        self._run_folder.mkdir(parents=True, exist_ok=True)
        with open(self._run_folder / "lock", "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log("another `tailtower up` or `down` is at work, waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def running(self) -> dict[str, ProcessRecord]:
        """Services that run, by name. What dead ones left behind is cleaned up on the way."""
        alive = {}
        for name, record in read_records(self._root).items():
            if is_running(record):
                alive[name] = record
            else:
                stop(record, timeout=self._stop_timeout)
                record_path(self._root, name).unlink(missing_ok=True)
        return alive

    def bring_up(self, services: Sequence[Service]) -> list[str]:
        """Starts what does not run yet or runs with other settings; waits until all are ready.

        Args:
            services: Each one after those it needs.

        Returns:
            Names of the services that were started.

        Raises:
            StackError: A service died or did not become ready in time.
        """
        alive = self.running()
        wanted = {service.name: service.fingerprint for service in services}
        for name, record in alive.items():
            if wanted.get(name) != record.fingerprint:
                log("settings changed, stopping", service=name)
                self.stop_service(name, record)
        self._given_up.clear()
        kept = {name for name, r in alive.items() if wanted.get(name) == r.fingerprint}
        started: dict[str, Future[bool]] = {}
        with ThreadPoolExecutor(max_workers=len(services)) as pool:
            for service in services:
                needs = [started[name] for name in service.after]
                found = alive[service.name] if service.name in kept else None
                started[service.name] = pool.submit(self._bring_up_one, service, found, needs)
            try:
                for future in as_completed(started.values()):
                    future.result()
            finally:
                # Leaving by an error or Ctrl-C: the other threads must not wait their full time.
                self._given_up.set()
        return [name for name, future in started.items() if future.result()]

    def take_down(self) -> list[str]:
        """Stops everything that was started here; returns the names of what was running."""
        records = read_records(self._root)
        # The scheduler first: while it lives it restarts tasks that lose their process.
        order = sorted(records, key=lambda name: (not name.endswith("scheduler"), name))
        stopped = []
        for group in (order[:1], order[1:]):
            if not group:
                continue
            with ThreadPoolExecutor(max_workers=len(group)) as pool:
                outcomes = pool.map(lambda name: self.stop_service(name, records[name]), group)
                stopped += [
                    name for name, was_there in zip(group, outcomes, strict=True) if was_there
                ]
        return stopped

    def stop_service(self, name: str, record: ProcessRecord) -> bool:
        """Stops one service and forgets it; True when there was something to stop."""
        was_there = stop(record, timeout=self._stop_timeout)
        record_path(self._root, name).unlink(missing_ok=True)
        return was_there

    def _bring_up_one(
        self, service: Service, record: ProcessRecord | None, needs: Sequence[Future[bool]]
    ) -> bool:
        """Runs in a thread of its own; True when the service had to be started."""
        for need in needs:
            need.result()
        if not service.stays and service.ready(time.time()):
            return False
        fresh = record is None
        began = time.monotonic()
        if record is None:
            record = start(
                service.command,
                environment=process_environment(service),
                folder=self._root,
                log=self._log(service),
                fingerprint=service.fingerprint,
                port=service.port,
            )
            write_record(record_path(self._root, service.name), record)
        self._wait_until_ready(service, record)
        if not service.stays:
            self.stop_service(service.name, record)
        if fresh:
            log("ready", service=service.name, seconds=round(time.monotonic() - began, 1))
        return fresh

    def _wait_until_ready(self, service: Service, record: ProcessRecord) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not self._given_up.is_set():
            # Asked in this order: a job may finish between the two questions.
            alive = is_running(record)
            if service.ready(record.created):
                return
            if not alive:
                raise self._failure(service, "ended before it was ready")
            if time.monotonic() > deadline:
                raise self._failure(service, f"did not answer within {self._start_timeout:.0f} s")
            self._given_up.wait(_POLL)
        raise StackError(f"{service.name} was not waited for", fix="run `tailtower up` again")

    def _failure(self, service: Service, what: str) -> StackError:
        path = self._log(service)
        return StackError(
            f"{service.name} {what}; its log ends with\n{log_tail(path)}",
            where=str(path),
            fix="mend what the log says, then run `tailtower up` again: it completes the stack "
            "(`tailtower down` stops what runs)",
        )

    def _log(self, service: Service) -> Path:
        return self._run_folder / f"{service.name}.log"


def ports_in_use(running: Mapping[str, ProcessRecord], names: Mapping[str, str]) -> dict[str, int]:
    """Ports that running services hold, by the names of the settings.

    Args:
        running: Records by service.
        names: Name of the port by service.
    """
    return {
        names[service]: record.port
        for service, record in running.items()
        if service in names and record.port is not None
    }
