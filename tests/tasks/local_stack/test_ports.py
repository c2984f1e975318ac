"""Which ports the stack takes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tasks.local_stack import ports
from tasks.local_stack.errors import StackError
from tasks.local_stack.ports import choose_ports, holder_of, is_free
from tests.tasks.local_stack.helpers import free_port


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_free_ports_are_taken_as_wished():
    wanted = {"airflow": free_port(), "mlflow": free_port()}
    assert choose_ports(wanted, {}) == (wanted, [])


def test_a_taken_port_is_replaced_and_its_holder_named(taken):
    chosen, notes = choose_ports({"airflow": taken}, {})
    assert chosen["airflow"] > taken
    assert is_free(chosen["airflow"])
    (note,) = notes
    assert f"port {taken} is taken by pid" in note
    assert str(chosen["airflow"]) in note


def test_two_names_never_get_one_port():
    port = free_port()
    chosen, notes = choose_ports({"airflow": port, "execution": port}, {})
    assert chosen["airflow"] != chosen["execution"]
    assert len(notes) == 1


def test_a_running_service_keeps_its_port(taken):
    chosen, notes = choose_ports({"airflow": 1, "mlflow": taken}, {"airflow": 1, "mlflow": taken})
    assert chosen == {"airflow": 1, "mlflow": taken}
    assert notes == []


def test_no_free_port_is_an_error_that_names_the_holder(taken, monkeypatch):
    monkeypatch.setattr(ports, "_SPAN", 1)
    with pytest.raises(StackError) as error:
        choose_ports({"airflow": taken}, {})
    assert "TAILTOWER_AIRFLOW_PORT" in str(error.value)
    assert "pid" in str(error.value.where)


def test_the_holder_of_a_free_port_is_nobody_in_particular():
    assert holder_of(free_port()) == "another process"


def test_a_port_in_use_on_all_interfaces_is_not_free():
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not is_free(server.getsockname()[1])
