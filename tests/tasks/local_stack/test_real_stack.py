"""Airflow and MLflow for real: up, one run of a small DAG, down."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tasks.local_stack import commands
from tasks.local_stack.airflow_client import AirflowClient
from tasks.local_stack.processes import is_running, members
from tasks.local_stack.settings import StackSettings
from tasks.local_stack.state import StackInfo, load_stack_info, read_records
from tests.tasks.local_stack.helpers import free_port

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

DAG = """
import os
from airflow.sdk import dag, task

@dag(schedule=None)
def small():
    @task(pool="training")
    def say(who):
        print(f"hello {who}, MLflow is at {os.environ['MLFLOW_TRACKING_URI']}")

    say("you")

small()
"""


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> StackSettings:
    root = tmp_path_factory.mktemp("stack")
    (root / "dags").mkdir()
    (root / "dags" / "small.py").write_text(DAG)
    ports = {name: free_port() for name in ("airflow", "execution", "mlflow")}
    return StackSettings(root=root, dags_folder=root / "dags", ports=ports)


@pytest.fixture(scope="module")
def stack(settings: StackSettings) -> Iterator[StackInfo]:
    yield commands.up(settings)
    commands.down(settings)


def test_a_run_goes_through_and_its_log_can_be_read(stack):
    with AirflowClient.of_stack(stack) as airflow:
        airflow.wait_for_dag("small")
        airflow.trigger("small", "first", note="from a test")
        airflow.trigger("small", "first")
        run = airflow.wait_for_run("small", "first", timeout=120)
        assert run.state == "success"
        assert run.note == "from a test"
        (task,) = airflow.task_instances("small", "first")
        assert task.state == "success"
        assert f"MLflow is at {stack.mlflow_url}" in airflow.task_log("small", "first", "say")


def test_mlflow_answers(stack):
    with urllib.request.urlopen(f"{stack.mlflow_url}/version", timeout=30) as response:
        assert response.status == 200


def test_everything_listens_on_loopback_only(stack, settings):
    ours = {
        process.pid
        for record in read_records(settings.root).values()
        for process in members(record)
    }
    listening = {
        tuple(connection.laddr)
        for connection in psutil.net_connections(kind="inet")
        if connection.pid in ours and connection.status == psutil.CONN_LISTEN
    }
    assert {port for _, port in listening} >= set(stack.ports.values())
    assert {address for address, _ in listening} == {"127.0.0.1"}


def test_a_second_up_returns_at_once(stack, settings):
    began = time.monotonic()
    again = commands.up(settings)
    assert time.monotonic() - began < 5
    assert again.running == stack.running


def test_a_killed_scheduler_is_replaced_and_the_rest_left_alone(stack, settings):
    before = members(read_records(settings.root)["airflow-scheduler"])
    assert len(before) > 1, "the scheduler has its workers"
    psutil.Process(stack.running["airflow-scheduler"]).kill()
    again = commands.up(settings)
    assert not any(map(lives, before))
    changed = {name for name, pid in again.running.items() if stack.running[name] != pid}
    assert changed == {"airflow-scheduler"}
    with AirflowClient.of_stack(again) as airflow:
        airflow.trigger("small", "second")
        assert airflow.wait_for_run("small", "second", timeout=120).state == "success"


def test_down_leaves_no_process(stack: StackInfo, settings: StackSettings, tmp_path: Path):
    # The last test of the module: it ends the stack the others use.
    records = read_records(settings.root)
    ours = [process for record in records.values() for process in members(record)]
    elsewhere = replace(settings, root=tmp_path)
    assert commands.down(elsewhere) == []
    assert all(is_running(record) for record in records.values())

    assert set(commands.down(settings)) == set(records)
    assert not any(map(lives, ours))
    assert load_stack_info(settings.root) is None
    assert commands.down(settings) == []
