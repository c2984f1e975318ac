"""Bringing up, completing and taking down, with small real servers in place of the real ones."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.local_stack.errors import StackError
from tasks.local_stack.processes import is_running
from tasks.local_stack.services import Service, answers
from tasks.local_stack.state import load_stack_info, read_records, save_ports
from tasks.local_stack.supervisor import Supervisor, ports_in_use
from tests.tasks.local_stack.helpers import free_port, wait_for

ServiceMaker = Callable[..., Service]


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path, start_timeout=20, stop_timeout=5)
    yield made
    made.take_down()


def web_server(name: str, port: int, *, after: tuple[str, ...] = (), mark: str = "") -> Service:
    return Service(
        name=name,
        command=(sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)),
        environment={"MARK": mark},
        ready=answers(f"http://127.0.0.1:{port}/"),
        after=after,
        port=port,
    )


def job(name: str, done: Path, code: str) -> Service:
    return Service(
        name=name,
        command=(sys.executable, "-c", code, str(done)),
        environment={},
        ready=lambda _: done.exists(),
        stays=False,
    )


TOUCH = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"


def test_a_second_call_finds_what_runs_and_starts_nothing(supervisor, tmp_path):
    services = [web_server("one", free_port()), web_server("two", free_port(), after=("one",))]
    assert supervisor.bring_up(services) == ["one", "two"]
    before = read_records(tmp_path)

    began = time.monotonic()
    another = Supervisor(tmp_path, start_timeout=20, stop_timeout=5)
    assert another.bring_up(services) == []
    assert time.monotonic() - began < 2
    assert read_records(tmp_path) == before


def test_a_partial_stack_is_completed(supervisor, tmp_path):
    services = [web_server("one", free_port()), web_server("two", free_port())]
    supervisor.bring_up(services)
    records = read_records(tmp_path)
    os.kill(records["two"].pid, signal.SIGKILL)
    wait_for(lambda: not is_running(records["two"]))

    save_ports(tmp_path, {})
    info = load_stack_info(tmp_path)
    assert info is not None
    assert info.stopped == ("two",)
    assert not info.complete

    assert supervisor.bring_up(services) == ["two"]
    assert read_records(tmp_path)["one"] == records["one"]


def test_a_service_whose_settings_changed_is_restarted(supervisor, tmp_path):
    ports = free_port(), free_port()
    supervisor.bring_up([web_server("one", ports[0]), web_server("two", ports[1])])
    before = read_records(tmp_path)
    changed = web_server("two", ports[1], mark="other")
    assert supervisor.bring_up([web_server("one", ports[0]), changed]) == ["two"]
    assert read_records(tmp_path)["one"] == before["one"]
    assert not is_running(before["two"])


def test_a_service_that_is_no_longer_wanted_is_stopped(supervisor, tmp_path):
    keep, drop = web_server("keep", free_port()), web_server("drop", free_port())
    supervisor.bring_up([keep, drop])
    dropped = read_records(tmp_path)["drop"]
    assert supervisor.bring_up([keep]) == []
    assert not is_running(dropped)
    assert set(read_records(tmp_path)) == {"keep"}


def test_take_down_stops_all_and_nothing_else(supervisor, tmp_path):
    stranger = Supervisor(tmp_path / "other", start_timeout=20, stop_timeout=5)
    try:
        stranger.bring_up([web_server("one", free_port())])
        supervisor.bring_up([web_server("one", free_port()), web_server("two", free_port())])
        records = read_records(tmp_path)
        assert sorted(supervisor.take_down()) == ["one", "two"]
        assert not any(is_running(record) for record in records.values())
        assert read_records(tmp_path) == {}
        assert supervisor.take_down() == []
        assert set(stranger.running()) == {"one"}
    finally:
        stranger.take_down()


def test_a_job_runs_once_and_before_what_needs_it(supervisor, tmp_path):
    done = tmp_path / "done"
    server = web_server("server", free_port(), after=("job",))
    assert supervisor.bring_up([job("job", done, TOUCH), server]) == ["job", "server"]
    assert done.stat().st_mtime <= read_records(tmp_path)["server"].created + 1
    assert set(read_records(tmp_path)) == {"server"}
    assert supervisor.bring_up([job("job", done, TOUCH), server]) == []


def test_a_service_that_dies_is_an_error_with_the_end_of_its_log(supervisor, tmp_path):
    broken = job("broken", tmp_path / "never", "raise SystemExit('no such table')")
    needs_it = web_server("server", free_port(), after=("broken",))
    with pytest.raises(StackError) as error:
        supervisor.bring_up([broken, needs_it])
    assert "no such table" in str(error.value)
    assert error.value.where == str(tmp_path / "var/run/broken.log")
    assert "server" not in read_records(tmp_path)


def test_a_service_that_never_answers_is_given_up(tmp_path):
    supervisor = Supervisor(tmp_path, start_timeout=0.5, stop_timeout=5)
    mute = Service(
        name="mute",
        command=(sys.executable, "-c", "import time; time.sleep(600)"),
        environment={},
        ready=lambda _: False,
    )
    try:
        with pytest.raises(StackError, match="did not answer within"):
            supervisor.bring_up([mute])
    finally:
        assert supervisor.take_down() == ["mute"]


def test_one_failure_ends_the_wait_for_the_others(supervisor, tmp_path):
    slow = Service(
        name="slow",
        command=(sys.executable, "-c", "import time; time.sleep(600)"),
        environment={},
        ready=lambda _: False,
    )
    began = time.monotonic()
    with pytest.raises(StackError, match="broken ended"):
        supervisor.bring_up([slow, job("broken", tmp_path / "never", "raise SystemExit(1)")])
    assert time.monotonic() - began < 10


def test_leftovers_of_a_killed_service_are_cleaned_before_the_next_start(supervisor, tmp_path):
    # The service's own child holds the port after its parent was killed.
    port = free_port()
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-m', 'http.server',"
        f" '--bind', '127.0.0.1', '{port}'])"
    )
    parent = Service(
        name="parent",
        command=(sys.executable, "-c", code),
        environment={},
        ready=answers(f"http://127.0.0.1:{port}/"),
        port=port,
    )
    supervisor.bring_up([parent])
    record = read_records(tmp_path)["parent"]
    os.kill(record.pid, signal.SIGKILL)
    wait_for(lambda: not is_running(record))
    assert answers(f"http://127.0.0.1:{port}/")(0.0)

    assert supervisor.running() == {}
    assert not answers(f"http://127.0.0.1:{port}/")(0.0)


def test_two_supervisors_of_one_folder_wait_for_each_other(supervisor, tmp_path):
    events: list[str] = []

    def second() -> None:
        with Supervisor(tmp_path, start_timeout=1, stop_timeout=1).alone():
            events.append("second")

    with supervisor.alone():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        events.append("first")
    thread.join(timeout=5)
    assert events == ["first", "second"]


def test_ports_of_running_services_are_known_by_the_names_of_the_settings(supervisor):
    port = free_port()
    supervisor.bring_up([web_server("airflow-api", port)])
    assert ports_in_use(supervisor.running(), {"airflow-api": "airflow"}) == {"airflow": port}
