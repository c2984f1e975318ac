"""Protects: the DAG is the table of steps, with notes and links for people."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import TriggerRule

from dags.daily_retrain import dag
from dags.operations_page import operations_page
from dags.settings import poll_seconds
from dags.triage import _DO, dag_notes
from tasks import errors
from tasks.steps import RECONCILE, RESOLVE, STEPS, Step

ROWS = {step.name: step for step in (RESOLVE, *STEPS)}
NOTED = {**ROWS, RECONCILE.name: RECONCILE}


def test_one_task_for_each_row_of_the_table():
    assert [task.task_id for task in dag.topological_sort()] == list(NOTED)


@pytest.mark.parametrize("name", ROWS)
def test_a_task_follows_its_row(name: str):
    row: Step = ROWS[name]
    task: Any = dag.get_task(name)
    # A mapped task also follows the one whose result it is mapped over.
    assert task.upstream_task_ids == {*row.needs, *(["resolve_run"] if row.each_role else [])}
    assert task.task_group.group_display_name == row.group
    assert task.retries == row.retries
    assert task.pool == (row.pool or "default_pool")
    assert task.is_mapped is row.each_role
    if name == "await_partition":
        assert task.timeout == row.timeout_minutes * 60
        assert task.execution_timeout == timedelta(minutes=10)
        assert task.reschedule
    else:
        assert task.execution_timeout == timedelta(minutes=row.timeout_minutes)


@pytest.mark.parametrize("name", NOTED)
def test_a_task_has_an_owner_and_notes(name: str):
    task: Any = dag.get_task(name)
    assert task.owner == "tailtower"
    assert f"### {name}: {NOTED[name].summary}" in task.doc_md
    rows = [line for line in task.doc_md.splitlines() if line.startswith("| ")]
    assert len(rows) >= 2
    assert all(line.count("|") == 4 for line in rows)


def test_a_task_only_waits_for_success():
    """A step must never start on what a failed one left."""
    rules = {task.task_id: task.trigger_rule for task in dag.tasks}
    assert rules.pop("reconcile") == TriggerRule.ONE_FAILED
    assert set(rules.values()) == {TriggerRule.ALL_SUCCESS}


def test_the_notes_say_what_to_do_about_every_error():
    classes: list[Any] = [cls for cls in vars(errors).values() if isinstance(cls, type)]
    notes = dag_notes()
    assert {cls.__name__ for cls in classes} - {"TailtowerError"} == set(_DO)
    for cls in classes:
        retried = "yes" if cls.transient else "no"
        assert f"| `{cls.__name__}` | {cls.exit_code} | {retried} |" in notes


def test_the_operations_page_is_up_to_date():
    page = Path(__file__).resolve().parents[2] / "docs/operations.md"
    assert page.read_text() == operations_page(), "run `python -m dags.operations_page`"


def test_the_serialized_dag_is_whole():
    """The scheduler and the UI see the serialized form only."""
    from airflow.serialization.serialized_objects import DagSerialization

    seen = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    links = {name: seen.get_task(name).operator_extra_link_dict.keys() for name in NOTED}
    assert links["train"] == {"MLflow run", "Training log"}
    assert links["resolve_run"] == {"MLflow run"}
    assert links["validate"] == {"Data Docs"}
    for name in ("count", "vocabulary", "examples"):
        assert links[name] == {"Dask dashboard"}
    for name in ("compare", "gate", "approve", "publish"):
        assert links[name] == {"Comparison in MLflow"}
    assert seen.get_task("train").map_index_template == "{{ task.role }}"
    assert seen.timetable.partitioned
    (outlet,) = seen.get_task("publish").outlets
    assert outlet.name == "tailtower_champion_update"
    (inlet,) = seen.get_task("resolve_run").inlets
    assert (inlet.name, inlet.uri) == ("tailtower_champion", "x-tailtower://champion")


@pytest.mark.parametrize(("text", "seconds"), [("", 60.0), ("5", 5.0), ("0.5", 0.5)])
def test_the_pause_between_two_looks_can_be_set(monkeypatch, text: str, seconds: float):
    monkeypatch.setenv("TAILTOWER_POLL_SECONDS", text)
    assert poll_seconds() == seconds


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "soon"])
def test_a_pause_that_is_none_is_refused(monkeypatch, text: str):
    monkeypatch.setenv("TAILTOWER_POLL_SECONDS", text)
    with pytest.raises(ValueError, match=r"POLL_SECONDS|could not convert"):
        poll_seconds()
