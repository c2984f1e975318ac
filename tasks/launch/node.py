"""One node of a job: starts the node's torch elastic agent and sees it to its end.

`start_node` is called on a Dask worker and returns at once. The process that it starts has a
session of its own: Dask may lose the worker, or its scheduler, and the training goes on. It ends
when the agent ends, when the attempt is cancelled or replaced, and it takes every rank with it,
also those of an agent that was killed. It ends as well when it cannot reach the rendezvous store,
which lives in the job's supervisor: a node that is cut off trains no more and can be told nothing,
so no node outlives the job by more than a time-out.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from models.fence import ATTEMPT
from tasks.launch.agent import (
    STOP_SECONDS,
    agent_command,
    agent_variables,
    interface_variables,
    own_address,
)
from tasks.launch.attempts import Attempt, NodeRecord, write_record
from tasks.launch.processes import NODE, end, thread_variables
from tasks.launch.protocol import JOB, JobShape
from tasks.version import PROJECT_ROOT

_BEAT_SECONDS = 1.0
_TRY_SECONDS, _ANSWER_SECONDS = 4.0, 2.0


def start_node(folder: str, node: str, host: str, endpoint: str) -> int:
    """Starts a node on the machine that this is called on.

    Args:
        folder: The attempt's folder.
        node: Name of the node.
        host: Address of the machine, as the supervisor knows it.
        endpoint: Address and port of the rendezvous store.

    Returns:
        Id of the node's first process.

    Raises:
        FileNotFoundError: This machine does not see the attempt's folder.
    """
    attempt = Attempt.at(Path(folder))
    # Before the process is there, so that the supervisor does not start another meanwhile.
    write_record(attempt.node_record(node), asdict(NodeRecord(node, host, time.time())))
    arguments = ("--attempt", folder, "--node", node, "--host", host, "--endpoint", endpoint)
    search_path = [str(PROJECT_ROOT), os.environ.get("PYTHONPATH")]
    with attempt.node_log(node).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasks.launch.node", *arguments],
            cwd=PROJECT_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search_path))},
            start_new_session=True,
        )
    # Collects the exit status, so that an ended node is no zombie of the worker.
    threading.Thread(target=process.wait, daemon=True).start()
    return process.pid


def main() -> int:
    """Runs a node; returns the exit status of its agent, 128 + n when signal n ended it."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("attempt", "node", "host", "endpoint"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    attempt = Attempt.at(Path(given.attempt))
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    settings = attempt.settings()
    shape = JobShape(**settings["shape"])
    address = own_address(given.endpoint.rpartition(":")[0])
    marker = (NODE, str(attempt.node_record(given.node)))
    agent = subprocess.Popen(
        agent_command(
            shape,
            worker=settings["worker"],
            job_file=attempt.job / JOB,
            run=f"{attempt.job.name}-{attempt.number}",
            endpoint=given.endpoint,
            local_address=address,
        ),
        env={
            **os.environ,
            **agent_variables(),
            **thread_variables(shape.threads, shape.ranks_per_node),
            **interface_variables(address),
            ATTEMPT: str(attempt.number),
            marker[0]: marker[1],
        },
    )
    reach = Reach(given.endpoint, shape.peer_timeout_seconds)
    try:
        while agent.poll() is None:
            if told.is_set() or attempt.must_end() or reach.is_lost():
                _stop(agent)
            else:
                record = NodeRecord(given.node, given.host, time.time())
                write_record(attempt.node_record(given.node), asdict(record))
                told.wait(_BEAT_SECONDS)
    finally:
        end(marker, STOP_SECONDS)
        status = agent.wait()
        status = 128 - status if status < 0 else status
        record = NodeRecord(given.node, given.host, time.time(), status)
        write_record(attempt.node_record(given.node), asdict(record))
    return status


class Reach:
    """Whether the rendezvous store can be reached.

    Torch elastic's own client waits for an answer on a dead connection as long as TCP does, a
    quarter of an hour.

    Args:
        endpoint: Address and port of the store.
        patience: Seconds after which a store that cannot be reached is lost.
    """

    def __init__(self, endpoint: str, patience: float) -> None:
        host, _, port = endpoint.rpartition(":")
        self._address = host, int(port)
        self._patience = patience
        self._reached = self._tried = time.monotonic()

    def is_lost(self) -> bool:
        """Tries from time to time; blocks for a moment when there is no answer."""
        if time.monotonic() - self._tried > _TRY_SECONDS:
            try:
                socket.create_connection(self._address, _ANSWER_SECONDS).close()
                self._reached = time.monotonic()
            except OSError as error:
                print(f"the rendezvous store does not answer: {error}", flush=True)
            self._tried = time.monotonic()
        return time.monotonic() - self._reached > self._patience


def _stop(agent: subprocess.Popen[bytes]) -> None:
    """Asks the agent, which asks its ranks; kills it when it takes too long."""
    agent.terminate()
    try:
        agent.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()


if __name__ == "__main__":
    sys.exit(main())
