"""Choosing ports that are free, and naming who has the others."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import psutil

from tasks.local_stack.errors import StackError
from tasks.local_stack.settings import HOST

_SPAN = 100
"""How far above the preferred port a free one is looked for."""


def choose_ports(
    preferred: Mapping[str, int], kept: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """A port for each name, and one sentence for each that is not the preferred one.

    Args:
        preferred: Wanted ports by name.
        kept: Ports that running services of this stack already listen on.

    Raises:
        StackError: Neither a wanted port nor one of the next hundred is free.
    """
    chosen = dict(kept)
    notes = []
    for name, wanted in preferred.items():
        if name in chosen:
            continue
        port = _next_free(wanted, set(chosen.values()))
        chosen[name] = port
        if port != wanted:
            notes.append(f"port {wanted} is taken by {holder_of(wanted)}; {name} uses {port}")
    return chosen, notes


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        # As servers do: a connection that lingers in TIME_WAIT does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def holder_of(port: int) -> str:
    """Who listens on a port, for a message."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return "another process"
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,):
            try:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
            except psutil.Error:
                break
    return "another process"


def _next_free(wanted: int, reserved: set[int]) -> int:
    for port in range(wanted, min(wanted + _SPAN, 2**16)):
        if port not in reserved and is_free(port):
            return port
    raise StackError(
        f"no free port from {wanted} to {wanted + _SPAN - 1}",
        where=f"{HOST}:{wanted} is held by {holder_of(wanted)}",
        fix="stop that process, or choose another range with TAILTOWER_AIRFLOW_PORT, "
        "TAILTOWER_EXECUTION_PORT and TAILTOWER_MLFLOW_PORT",
    )
