"""Command and variables of a torch elastic agent, which owns the ranks of one node."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from tasks.launch.protocol import JobShape

_SHUTDOWN_SECONDS = 10
STOP_SECONDS = _SHUTDOWN_SECONDS + 5.0
"""How long an agent that is asked to stop may take: its ranks write a checkpoint first."""


def agent_command(
    shape: JobShape,
    *,
    worker: str,
    job_file: Path | str,
    run: str,
    endpoint: str,
    local_address: str,
    python: str = sys.executable,
    hosts_store: bool | None = False,
) -> list[str]:
    """Command that runs the agent of one node.

    Args:
        shape: Nodes, ranks and time-outs of the job.
        worker: Module that every rank runs.
        job_file: What every rank is given.
        run: Name of the rendezvous: the same on all nodes of an attempt, another in each attempt.
        endpoint: Address and port of the rendezvous store.
        local_address: Address under which the other nodes reach this one.
        python: Interpreter.
        hosts_store: Whether this agent makes the store; None where the one does whose machine the
            endpoint names.
    """
    rendezvous = {
        "read_timeout": round(shape.peer_timeout_seconds),
        "last_call_timeout": shape.join_seconds,
    }
    if hosts_store is not None:
        rendezvous["is_host"] = int(hosts_store)
    return [
        *(python, "-m", "torch.distributed.run"),
        f"--nnodes={shape.min_nodes}:{shape.max_nodes}",
        f"--nproc-per-node={shape.ranks_per_node}",
        f"--max-restarts={shape.max_restarts}",
        f"--shutdown-timeout={_SHUTDOWN_SECONDS}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={run}",
        f"--rdzv-conf={','.join(f'{key}={value}' for key, value in rendezvous.items())}",
        f"--local-addr={local_address}",
        *("-m", worker, "--job", str(job_file)),
    ]


def agent_variables() -> dict[str, str]:
    """Variables of every agent."""
    return {
        # A node that comes back finds the ranks' store of the round it is in, not the first one's.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def interface_variables(address: str) -> Mapping[str, str]:
    """Variables that keep the ranks' traffic on the interface of an address."""
    return {"GLOO_SOCKET_IFNAME": interface_of(address)}


def own_address(towards: str) -> str:
    """Address of this machine on the way to another.

    Args:
        towards: The other's name or address.
    """
    family, _, _, _, target = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Chooses a route; nothing is sent.
        probe.connect(target)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Name of this machine's interface with an address.

    Raises:
        ValueError: There is none.
    """
    wanted = ipaddress.ip_address(address)
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            try:
                if ipaddress.ip_address(entry.address.partition("%")[0]) == wanted:
                    return name
            except ValueError:
                continue
    raise ValueError(f"no interface of this machine has the address {address}")
