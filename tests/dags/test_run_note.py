"""Protects: a run's note is written where there is a connection, and never costs a run."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from dags.run_note import LIMIT, shortened, write_note
from tasks.local_stack import airflow_client
from tasks.local_stack.errors import StackError

CONTEXT: Any = {"dag_run": SimpleNamespace(dag_id="daily_retrain", run_id="manual__1")}


class FakeAirflow:
    """The REST API as far as notes go."""

    def __init__(self, note: str | None = None, *, down: bool = False) -> None:
        self.note, self.down = note, down
        self.opened: list[tuple[str, str, str]] = []

    def __call__(self, url: str, user: str, password: str, **_: Any) -> "FakeAirflow":
        self.opened.append((url, user, password))
        return self

    def __enter__(self) -> "FakeAirflow":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def dag_run(self, dag_id: str, run_id: str) -> SimpleNamespace:
        if self.down:
            raise StackError("no answer", where="x", fix="y")
        assert (dag_id, run_id) == ("daily_retrain", "manual__1")
        return SimpleNamespace(note=self.note)

    def set_note(self, dag_id: str, run_id: str, note: str) -> None:
        self.note = note


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch):
    def install(**settings: Any) -> FakeAirflow:
        fake = FakeAirflow(**settings)
        monkeypatch.setattr(airflow_client, "AirflowClient", fake)
        return fake

    monkeypatch.setattr(
        Connection,
        "get",
        lambda _: SimpleNamespace(
            host="10.0.0.1", port=8080, schema="https", login="bot", password="secret"
        ),
    )
    return install


@pytest.mark.parametrize("before", [None, "", "**2026-03-09**: earlier"])
def test_an_empty_note_and_an_own_one_are_replaced(airflow, before: str | None):
    fake = airflow(note=before)
    write_note(CONTEXT, "**2026-03-09**: new")
    assert fake.note == "**2026-03-09**: new"
    assert fake.opened == [("https://10.0.0.1:8080", "bot", "secret")]


def test_what_a_person_wrote_stays(airflow):
    fake = airflow(note="trying a lower learning rate")
    write_note(CONTEXT, "**2026-03-09**: new")
    assert fake.note == "trying a lower learning rate"


def test_an_api_that_does_not_answer_costs_the_note_only(airflow):
    fake = airflow(down=True)
    write_note(CONTEXT, "**2026-03-09**: new")
    assert fake.note is None


def test_without_a_connection_there_is_no_note(airflow, monkeypatch):
    fake = airflow()

    def absent(_: str) -> None:
        raise AirflowNotFoundException("no connection")

    monkeypatch.setattr(Connection, "get", absent)
    write_note(CONTEXT, "**2026-03-09**: new")
    assert (fake.note, fake.opened) == (None, [])


def test_a_long_note_loses_whole_lines_from_its_end():
    lines = ["**2026-03-09**", *(f"- line {n} " + "x" * 90 for n in range(20))]
    short = shortened("\n".join(lines))
    assert len(short) <= LIMIT
    *kept, last = short.splitlines()
    assert last == "…"
    assert kept == lines[: len(kept)]
    assert len(short) + len(lines[len(kept)]) + 1 > LIMIT, "no more than needed"
    assert len(shortened("y" * 5000)) == LIMIT
    assert shortened("short") == "short"
