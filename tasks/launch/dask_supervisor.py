"""The process that looks after a job on a Dask cluster, on the machine that submitted it.

It holds the rendezvous store, in a process of its own so that no node's end takes it away, puts
a node on every worker that is wanted, and again when one is lost or comes later, and ends when the
training does. The training itself needs neither Dask nor this machine's step.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from tasks.config import DaskSettings
from tasks.launch.agent import STOP_SECONDS, own_address
from tasks.launch.attempts import Attempt, NodeRecord, write_record
from tasks.launch.placement import Pauses, Placement, choose
from tasks.launch.protocol import JobShape
from tasks.progress import log

CANCELLED = 143
_LOOK_SECONDS = 1.0
_END_SECONDS = STOP_SECONDS + 20.0
_KILLED = 128
"""Exit statuses above this one come from a signal."""


class Supervisor:
    """Looks after one attempt.

    Args:
        attempt: The attempt.
    """

    def __init__(self, attempt: Attempt) -> None:
        settings = attempt.settings()
        self._attempt = attempt
        self._shape = JobShape(**settings["shape"])
        self._dask = DaskSettings.model_validate(settings["dask"])
        self._placement = Placement(self._dask)
        self._pauses = Pauses()
        self._store: object = None
        self._endpoint = ""
        self._started = 0
        self._ended: set[str] = set()
        self._trouble = ""
        self._told = threading.Event()
        self._last_alive = time.monotonic()

    def run(self) -> int:
        """Runs to the end of the training; returns the exit status."""
        signal.signal(signal.SIGTERM, lambda *_: self._told.set())
        self._say_alive()
        with ThreadPoolExecutor(1, "placement") as pool:
            placing: Future[None] | None = None
            while True:
                self._say_alive()
                if self._told.is_set() or self._attempt.must_end():
                    self._attempt.cancel()
                    self._wait_for_nodes()
                    return CANCELLED
                nodes = self._attempt.nodes()
                status = self._verdict(nodes)
                if status is not None:
                    return status
                if placing is None or placing.done():
                    placing = pool.submit(self._place, nodes)
                self._told.wait(_LOOK_SECONDS)

    def close(self) -> None:
        """Lets go of the cluster and of the store, which ends agents that still wait for it."""
        self._placement.close()
        self._store = None

    def _say_alive(self) -> None:
        content = {"host": socket.gethostname(), "beat": time.time(), "pid": os.getpid()}
        write_record(self._attempt.supervisor_record(), content)

    def _verdict(self, nodes: list[NodeRecord]) -> int | None:
        """Exit status when the training is over, one way or the other."""
        self._note_ends(nodes)
        if any(node.is_alive for node in nodes):
            self._last_alive = time.monotonic()
            return None
        statuses = [node.status for node in nodes]
        if 0 in statuses:
            return 0
        failed = [status for status in statuses if status is not None and status < _KILLED]
        if failed:
            return 1
        if len(nodes) > self._shape.max_restarts + self._shape.max_nodes:
            log("launch.given_up", nodes=len(nodes), why="all of them were killed")
            return 1
        if time.monotonic() - self._last_alive > self._dask.workers_timeout_seconds:
            log("launch.given_up", why=self._trouble or "the cluster has too few workers")
            return 1
        return None

    def _note_ends(self, nodes: list[NodeRecord]) -> None:
        for node in nodes:
            if node.is_alive or node.node in self._ended:
                continue
            self._ended.add(node.node)
            log("launch.node_ended", node=node.node, host=node.host, status=node.status)
            if node.status is not None and 0 < node.status < _KILLED:
                self._pauses.add(node.host)

    def _place(self, nodes: list[NodeRecord]) -> None:
        """Starts nodes where some are wanted and there is room; runs in the background."""
        alive = [node for node in nodes if node.is_alive]
        # A node that has finished has trained to the end: the others are about to.
        done = any(node.status == 0 for node in nodes)
        wanted = 0 if done else self._shape.max_nodes - len(alive)
        if wanted <= 0:
            return
        try:
            workers = self._placement.hosts()
            if not alive and workers.total() < self._shape.min_nodes:
                few = f"{workers.total()} workers instead of {self._shape.min_nodes}"
                self._complain(f"the cluster has {few}")
                return
            rested = {host: count for host, count in workers.items() if self._pauses.over(host)}
            for host in choose(rested, Counter(node.host for node in alive), wanted):
                self._start(host)
            self._trouble = ""
        except OSError as error:
            self._complain(str(error))

    def _start(self, host: str) -> None:
        if self._store is None:
            self._open_store(own_address(host))
        self._started += 1
        node = f"{self._started:03d}"
        self._placement.start(host, str(self._attempt.folder), node, self._endpoint)
        log("launch.node_started", node=node, host=host)

    def _open_store(self, address: str) -> None:
        from torch._C._distributed_c10d import TCPStore

        # The store itself would listen on every interface.
        with socket.create_server((address, 0)) as listener:
            port = listener.getsockname()[1]
            self._store = TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=self._shape.peer_timeout_seconds),
                master_listen_fd=os.dup(listener.fileno()),
            )
        self._endpoint = f"{address}:{port}"

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            log("launch.waiting", why=trouble)
        self._trouble = trouble

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            self._say_alive()
            left = [node for node in self._attempt.nodes() if node.is_alive]
            if not left:
                return
            time.sleep(_LOOK_SECONDS / 4)
        hosts = ", ".join(node.host for node in left)
        log("launch.unconfirmed", hosts=hosts, note="these nodes end when they find the mark")


def main() -> int:
    """Runs the supervisor of an attempt; returns the exit status of the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempt", required=True, type=Path, help="folder of the attempt")
    supervisor = Supervisor(Attempt.at(parser.parse_args().attempt))
    try:
        return supervisor.run()
    finally:
        supervisor.close()


if __name__ == "__main__":
    sys.exit(main())
