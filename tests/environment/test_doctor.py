"""The doctor's checks on small made-up machines."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from environment import doctor


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_is_reported_with_its_holder(listener, monkeypatch):
    assert doctor.is_taken(listener)
    holder = doctor.port_holder(listener)
    assert holder is not None
    assert holder.startswith(f"pid {os.getpid()} (")

    monkeypatch.setenv("TAILTOWER_AIRFLOW_PORT", str(listener))
    airflow = doctor.check_ports()[0]
    assert "taken by pid" in airflow.detail
    assert not airflow.wrong, "the local stack takes the next free port by itself"


def test_a_free_port_is_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not doctor.is_taken(port)
    assert doctor.port_holder(port) is None


def test_a_port_variable_that_is_no_number_is_wrong(monkeypatch):
    monkeypatch.setenv("TAILTOWER_MLFLOW_PORT", "five thousand")
    assert any(finding.wrong for finding in doctor.check_ports())


def _meminfo(tmp_path: Path, available_gb: float) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal: 25000000 kB\nMemAvailable: {int(available_gb * 1e9 / 1024)} kB\n")
    return path


def test_little_memory_is_wrong_and_plenty_is_not(tmp_path):
    assert doctor.check_memory(_meminfo(tmp_path, 1.0)).wrong
    assert not doctor.check_memory(_meminfo(tmp_path, 8.0)).wrong
    assert not doctor.check_memory(tmp_path / "absent").wrong


def test_no_environment_is_wrong_and_names_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "VENV_PYTHON", tmp_path / "python")
    assert "make setup" in doctor.check_environment().wrong
    assert doctor.check_packages() == []


def test_the_exit_status_says_whether_something_is_wrong(monkeypatch, capsys):
    for name in ("check_environment", "check_disk", "check_memory"):
        monkeypatch.setattr(doctor, name, lambda: doctor.Finding("topic", "fine"))
    monkeypatch.setattr(doctor, "check_packages", list)
    monkeypatch.setattr(doctor, "check_ports", list)
    assert doctor.main() == 0
    monkeypatch.setattr(doctor, "check_packages", lambda: [doctor.Finding("pair", "bad", "fix it")])
    assert doctor.main() == 1
    assert "-> fix it" in capsys.readouterr().out
