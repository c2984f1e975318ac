"""A node that cannot reach the rendezvous store knows, in time, and not because of one lost try."""

import socket

from tasks.launch.node import Reach


def test_a_store_is_lost_when_it_has_not_answered_for_long(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("tasks.launch.node.time.monotonic", lambda: now[0])
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach = Reach(f"127.0.0.1:{server.getsockname()[1]}", 20.0)
        for _ in range(10):
            now[0] += 15
            assert not reach.is_lost()
    assert capsys.readouterr().out == ""
    now[0] += 15
    assert not reach.is_lost()
    now[0] += 6
    assert reach.is_lost()
    assert "the rendezvous store does not answer" in capsys.readouterr().out


def test_a_store_that_comes_back_is_not_lost(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tasks.launch.node.time.monotonic", lambda: now[0])
    answers = iter([OSError("no route"), OSError("no route"), None])

    def connect(address, timeout):
        answer = next(answers)
        if answer is not None:
            raise answer
        return socket.socket()

    monkeypatch.setattr("tasks.launch.node.socket.create_connection", connect)
    reach = Reach("10.0.0.1:29400", 20.0)
    lost = []
    for _ in range(3):
        now[0] += 9
        lost.append(reach.is_lost())
    assert lost == [False, False, False]
