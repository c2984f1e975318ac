"""Protects: people hear of what needs them, once, and a receiver's secrets stay where they are.

Messages go to a real HTTP server and a real SMTP conversation on this machine.
"""

from __future__ import annotations

import json
import logging
import socketserver
import threading
from collections.abc import Iterator
from email import message_from_string
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from dags.alerts import VARIABLE, Message, TaskAlert, deadline, late, receivers, send


class Receiver:
    """What arrived, and where to send it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.got: list[tuple[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def hook() -> Iterator[Receiver]:
    """An HTTP server; paths below /broken answer 500."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.got.append((self.path, json.loads(body)))
            self.send_response(500 if self.path.startswith("/broken") else 200)
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(server.server_address[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture
def post_office() -> Iterator[Receiver]:
    """A mail server that takes one message a connection (RFC 5321, the least of it)."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                word = line.split()[0].upper()
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = iter(self.rfile.readline, b".\r\n")
                    text = b"".join(lines).decode()
                    found.got.append(("mail", message_from_string(text)))
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")
                if word == b"QUIT":
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        found = Receiver(server.server_address[1])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


MESSAGE = Message("failed", "daily_retrain", "manual__1", "train", "it <broke>", "http://x/log")


def test_a_webhook_gets_the_message_and_slack_its_text(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{hook.url}/any slack+{hook.url}/services/T0/secret")
    send(MESSAGE)
    (first, body), (second, slack) = hook.got
    assert (first, second) == ("/any", "/services/T0/secret")
    assert body == {
        "event": "failed",
        "dag": "daily_retrain",
        "run": "manual__1",
        "task": "train",
        "text": "it <broke>",
        "url": "http://x/log",
    }
    assert slack == {"text": "*daily_retrain: train failed (manual__1)*\nit <broke>\nhttp://x/log"}


def test_mail_goes_through_the_connection(
    post_office: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "mailto:team@example.org")
    monkeypatch.setenv(
        "AIRFLOW_CONN_SMTP_DEFAULT",
        json.dumps(
            {
                "conn_type": "smtp",
                "host": "127.0.0.1",
                "port": post_office.port,
                "extra": {
                    "from_email": "air@example.org",
                    "disable_ssl": True,
                    "disable_tls": True,
                },
            }
        ),
    )
    send(MESSAGE)
    ((_, mail),) = post_office.got
    assert (mail["To"], mail["From"]) == ("team@example.org", "air@example.org")
    assert mail["Subject"] == "daily_retrain: train failed (manual__1)"
    (text,) = mail.get_payload()
    assert b"it &lt;broke&gt;" in text.get_payload(decode=True)


@pytest.mark.faults
def test_a_dead_receiver_stops_nobody_and_its_secret_stays_out_of_the_log(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = f"slack+{hook.url}/broken/secret"
    monkeypatch.setenv(VARIABLE, f"{broken} http://127.0.0.1:9/secret {hook.url}/last")
    with caplog.at_level(logging.WARNING):
        send(MESSAGE)
    assert [path for path, _ in hook.got] == ["/broken/secret", "/last"]
    ours = [record.getMessage() for record in caplog.records if record.name == "dags.alerts"]
    assert ours == [
        "alert not delivered to 127.0.0.1: HTTPStatusError",
        "alert not delivered to 127.0.0.1: ConnectError",
    ]


@pytest.mark.parametrize("wrong", ["ftp://x/secret", "mailto:nobody", "hooks.slack.com/secret"])
def test_a_wrong_receiver_is_named_by_its_place(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"https://x.example/a {wrong}")
    with pytest.raises(ValueError, match="receiver 2 is neither") as caught:
        receivers()
    assert wrong not in str(caught.value)


def context(**facts: Any) -> Any:
    ti = SimpleNamespace(
        dag_id="daily_retrain",
        run_id="manual__1",
        task_id="gate",
        log_url="http://x/log",
        xcom_pull=lambda task_ids, key: facts.get(key) if task_ids == "gate" else None,
    )
    return {"ti": ti}


def test_a_failed_task_is_told_with_its_error(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, hook.url)
    TaskAlert().notify(context() | {"exception": RuntimeError("step 'gate' failed")})
    ((_, body),) = hook.got
    assert (body["event"], body["text"], body["url"]) == (
        "failed",
        "step 'gate' failed",
        "http://x/log",
    )


@pytest.mark.parametrize(
    ("decision", "event"),
    [
        ("rejected", "not promoted"),
        ("proposed", "proposed"),
        ("promoted", None),
        ("recorded", None),
        (None, None),
    ],
)
def test_only_a_decision_that_needs_a_person_is_told(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch, decision: str | None, event: str | None
) -> None:
    monkeypatch.setenv(VARIABLE, hook.url)
    TaskAlert().notify(context(decision=decision, reason="recall fell"))
    assert [(body["event"], body["text"]) for _, body in hook.got] == (
        [(event, "recall fell")] if event else []
    )


def test_a_late_run_is_told(hook: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, hook.url)
    monkeypatch.setenv("TAILTOWER_DEADLINE_HOURS", "0.5")
    alert = deadline()
    assert alert.interval.total_seconds() == 1800
    assert alert.callback.path == "dags.alerts.late"
    late({"dag_run": {"dag_id": "daily_retrain", "dag_run_id": "r"}}, **alert.callback.kwargs)
    ((_, body),) = hook.got
    assert (body["event"], body["run"]) == ("late", "r")
    assert "0.5 hours ago" in body["text"]


def test_without_receivers_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert receivers() == []
    send(MESSAGE)
