"""Nodes go where there is room, one for each worker, and not at once where one has just failed."""

import socket

import pytest

from tasks.launch.agent import interface_of, own_address
from tasks.launch.placement import Pauses, choose, host_of


@pytest.mark.parametrize(
    ("workers", "busy", "wanted", "chosen"),
    [
        ({"a": 1, "b": 1}, {}, 2, ["a", "b"]),
        ({"a": 2, "b": 1}, {}, 3, ["a", "b", "a"]),
        ({"a": 2, "b": 1}, {"a": 1}, 2, ["b", "a"]),
        # A node outlives its worker; a worker that came back finds its machine taken.
        ({"a": 1}, {"a": 1}, 1, []),
        ({"a": 1}, {"a": 2}, 1, []),
        ({}, {}, 4, []),
    ],
)
def test_the_emptiest_machines_come_first(workers, busy, wanted, chosen):
    assert choose(workers, busy, wanted) == chosen


def test_pauses_grow_and_each_machine_has_its_own(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tasks.launch.placement.time.monotonic", lambda: now[0])
    pauses = Pauses()
    assert pauses.over("a")
    for length in (5, 10, 20):
        pauses.add("a")
        now[0] += length - 0.1
        assert not pauses.over("a")
        assert pauses.over("b")
        now[0] += 0.2
        assert pauses.over("a")


def test_addresses():
    assert host_of("tls://10.77.0.3:4711") == "10.77.0.3"
    assert host_of("tcp://[fe80::1]:80") == "fe80::1"
    assert own_address("127.0.0.1") == "127.0.0.1"
    loopback = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    assert {interface_of("127.0.0.1")} == loopback
    with pytest.raises(ValueError, match="no interface"):
        interface_of("192.0.2.1")
