"""The client against answers that a real server gives now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tasks.local_stack import airflow_client
from tasks.local_stack.airflow_client import AirflowClient
from tasks.local_stack.errors import StackError

RUN = {
    "dag_id": "daily",
    "dag_run_id": "mine",
    "state": "queued",
    "start_date": None,
    "end_date": None,
    "note": None,
}
Answer = httpx.Response | type[Exception]


class Server:
    """Answers logins by itself and everything else from a list."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[httpx.Request] = []
        self.logins = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            self.logins += 1
            return httpx.Response(201, json={"access_token": f"token-{self.logins}"})
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, httpx.Response):
            return answer
        raise answer("the connection broke")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[AirflowClient]:
    monkeypatch.setattr(airflow_client, "_FIRST_PAUSE", 0.0)
    transport = httpx.MockTransport(server)
    with AirflowClient("http://airflow/", "admin", "secret", transport=transport) as made:
        yield made


def ok(body: Any) -> httpx.Response:
    return httpx.Response(200, json=body)


def test_a_trigger_is_sent_again_after_a_server_error(client, server):
    server.answers = [httpx.Response(500), httpx.ConnectError, ok(RUN)]
    assert client.trigger("daily", "mine", partition_key="2026-01-02").state == "queued"
    bodies = {request.content for request in server.requests}
    assert len(bodies) == 1, "every attempt names the same run"
    assert b'"partition_key":"2026-01-02"' in bodies.pop()


def test_a_repeated_trigger_finds_the_run_of_the_first_attempt(client, server):
    server.answers = [httpx.Response(500), httpx.Response(409), ok({**RUN, "state": "running"})]
    assert client.trigger("daily", "mine").state == "running"
    assert server.requests[-1].method == "GET"


def test_a_note_is_written_on_its_run(client, server):
    server.answers = [ok(RUN)]
    client.set_note("daily", "mine", "**2026-01-02**")
    (request,) = server.requests
    assert (request.method, request.url.path) == ("PATCH", "/api/v2/dags/daily/dagRuns/mine")
    assert request.content == b'{"note":"**2026-01-02**"}'


def test_the_logical_date_is_always_sent(client, server):
    server.answers = [ok(RUN)]
    client.trigger("daily", "mine")
    assert b'"logical_date":null' in server.requests[0].content
    assert b"partition_key" not in server.requests[0].content


def test_an_expired_token_is_renewed(client, server):
    server.answers = [ok(RUN), httpx.Response(401), ok(RUN)]
    client.dag_run("daily", "mine")
    client.dag_run("daily", "mine")
    assert server.logins == 2
    assert server.requests[-1].headers["Authorization"] == "Bearer token-2"


def test_a_refusal_is_not_repeated_and_says_why(client, server):
    server.answers = [httpx.Response(404, json={"detail": "Dag with dag_id: 'daily' not found"})]
    with pytest.raises(StackError, match="Dag with dag_id"):
        client.trigger("daily", "mine")


def test_a_server_that_stays_away_is_named(client, server):
    server.answers = [httpx.ConnectError] * 10
    with pytest.raises(StackError, match="no answer") as error:
        client.dag_run("daily", "mine")
    assert error.value.where == "http://airflow"
    assert len(server.requests) < 10


def test_a_wrong_password_is_said_at_once(server):
    refuse: Callable[[httpx.Request], httpx.Response] = lambda _: httpx.Response(401)  # noqa: E731
    transport = httpx.MockTransport(refuse)
    with (
        AirflowClient("http://airflow", "admin", "wrong", transport=transport) as client,
        pytest.raises(StackError, match="password"),
    ):
        client.dag_run("daily", "mine")


def test_task_instances_come_from_all_pages_in_the_order_of_their_start(client, server):
    def task(name: str, started: str | None) -> dict[str, Any]:
        return {
            "task_id": name,
            "map_index": -1,
            "state": "success",
            "try_number": 1,
            "start_date": started,
            "duration": 1.5,
        }

    pages = [
        [task("third", None), task("second", "2026-01-01T00:00:02Z")],
        [task("first", "2026-01-01T00:00:01Z")],
    ]
    server.answers = [ok({"task_instances": page, "total_entries": 3}) for page in pages]
    names = [found.task_id for found in client.task_instances("daily", "mine")]
    assert names == ["first", "second", "third"]
    assert server.requests[1].url.params["offset"] == "2"


def test_a_run_id_with_a_time_in_it_survives_the_url(client, server):
    server.answers = [ok(RUN)]
    client.dag_run("daily", "manual__2026-01-02T00:00:00+00:00")
    assert b"manual__2026-01-02T00%3A00%3A00%2B00%3A00" in server.requests[0].url.raw_path


def test_waiting_shows_each_change_once_and_ends_with_the_run(client, server):
    def states(*pairs: tuple[str, str | None]) -> httpx.Response:
        tasks = [
            {
                "task_id": name,
                "map_index": -1,
                "state": state,
                "try_number": 1,
                "start_date": None,
                "duration": None,
            }
            for name, state in pairs
        ]
        return ok({"task_instances": tasks, "total_entries": len(tasks)})

    running, over = ok({**RUN, "state": "running"}), ok({**RUN, "state": "failed"})
    server.answers = [
        running, states(("a", "running")),
        running, states(("a", "running")),
        over, states(("a", "failed")),
    ]  # fmt: skip
    shown: list[list[str | None]] = []
    run = client.wait_for_run(
        "daily",
        "mine",
        timeout=60,
        poll=0,
        on_change=lambda tasks: shown.append([task.state for task in tasks]),
    )
    assert run.state == "failed"
    assert run.is_over
    assert shown == [["running"], ["failed"]]


def test_a_run_that_takes_too_long_is_named_with_its_page(client, server):
    server.answers = [ok({**RUN, "state": "running"})]
    with pytest.raises(StackError, match="still running") as error:
        client.wait_for_run("daily", "mine", timeout=-1)
    assert error.value.where == "http://airflow/dags/daily/runs/mine"


def test_a_dag_file_that_does_not_import_is_named(client, server):
    broken = {"filename": "daily.py", "stack_trace": "Traceback\nNameError: name 'x'\n"}
    server.answers = [httpx.Response(404), ok({"import_errors": [broken]})]
    with pytest.raises(StackError, match=r"daily\.py: NameError"):
        client.wait_for_dag("daily")


def test_the_log_of_a_task_is_plain_lines(client, server):
    content = [{"event": "::group::Start", "sources": []}, {"event": "hello"}, "as text"]
    server.answers = [ok({"content": content})]
    assert client.task_log("daily", "mine", "count") == "::group::Start\nhello\nas text"
