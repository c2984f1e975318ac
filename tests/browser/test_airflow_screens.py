"""What people do in Airflow, in a real browser: watch, trigger, backfill, approve.

The tests are one story in the order of this file; each saves pictures (`TAILTOWER_SCREENSHOTS`, by
default `var/screenshots`).
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tasks.demo_command import DAG_ID
from tasks.local_stack.airflow_client import AirflowClient

pytestmark = [
    *(pytest.mark.browser, pytest.mark.integration, pytest.mark.slow),
    pytest.mark.timeout(2400),
    # Playwright's own event loop, closed by the interpreter.
    pytest.mark.filterwarnings("default"),
]

RUN_SECONDS = 900.0
FIRST, LAST = "2026-01-05", "2026-01-07"
"""Days of the backfill."""


def runs_of(airflow: AirflowClient) -> set[str]:
    """Names of all runs of the DAG."""
    return {run.run_id for run in airflow.dag_runs(DAG_ID)}


def open_form(page: Any, stack: Any) -> Any:
    """The trigger form of the DAG, all of its fields untouched."""
    page.goto(f"{stack.airflow_url}/dags/{DAG_ID}")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.locator("[data-scope=dialog][data-part=content]")
    form.get_by_role("button", name="Comparison and decision").wait_for()
    return form


def open_section(page: Any, form: Any, name: str) -> None:
    form.get_by_role("button", name=name, exact=True).click()
    page.wait_for_timeout(600)  # it unfolds


def choose(form: Any, field: str, option: str) -> None:
    """Picks an entry of a drop-down list by its first letters, as a person does."""
    chosen = form.locator(f"input[name={field}]")
    text = chosen.locator("xpath=preceding::input[@type='text'][1]")
    text.fill(option)
    text.press("Enter")
    assert chosen.input_value() == option


def press_trigger(page: Any, form: Any, airflow: AirflowClient) -> str:
    """Triggers the run; returns its id."""
    before = runs_of(airflow)
    form.get_by_role("button", name="Trigger", exact=True).click()
    deadline = time.monotonic() + 60
    while not (fresh := runs_of(airflow) - before):
        assert time.monotonic() < deadline, "no run was made"
        page.wait_for_timeout(500)
    return fresh.pop()


def test_logged_in_one_sees_the_dags(page, stack, shoot):
    page.goto(f"{stack.airflow_url}/dags")
    for title in ("Daily retraining", "Full refresh", "Rebuild the item index"):
        page.get_by_text(title, exact=True).first.wait_for()
    shoot("airflow-dags")


def test_the_form_refuses_wrong_values_and_makes_no_run(page, stack, airflow, shoot):
    before = runs_of(airflow)
    form = open_form(page, stack)
    open_section(page, form, "Run")
    form.get_by_text("Training window (days)").wait_for()
    shoot("airflow-form", height=1300)
    open_section(page, form, "Model and training")
    epochs = form.locator("input[name=element_epochs]")
    epochs.fill("0")
    epochs.press("Tab")
    assert epochs.input_value() == "1", "the least that the configuration takes"
    form.locator("input[name=element_nodes]").fill("two")
    form.get_by_role("button", name="Trigger", exact=True).click()
    form.get_by_text("Invalid input for param nodes").wait_for()
    shoot("airflow-form-refused", height=1300)
    assert runs_of(airflow) == before


def test_a_dry_run_shows_its_plan_and_trains_nothing(page, stack, airflow, shoot):
    form = open_form(page, stack)
    open_section(page, form, "Run")
    form.locator("input[name=element_day]").fill("2026-01-04")
    form.locator("input[name=element_dry_run]").locator("xpath=ancestor::label").click()
    run_id = press_trigger(page, form, airflow)
    run = airflow.wait_for_run(DAG_ID, run_id, timeout=RUN_SECONDS)
    assert run.state == "success"
    states = {task.state for task in airflow.task_instances(DAG_ID, run_id)}
    assert states == {"skipped"}
    assert run.note is not None
    assert run.note.startswith("**Dry run of 2026-01-04")
    page.goto(airflow.run_page(DAG_ID, run_id))
    page.get_by_text("Dry run of 2026-01-04").first.wait_for()
    page.get_by_role("button", name="Edit note").click()
    page.get_by_text("models: candidate, popularity, traditional").first.wait_for()
    shoot("airflow-dry-run")


def test_a_backfill_of_three_days_from_the_page(page, stack, airflow, shoot):
    form = open_form(page, stack)
    form.get_by_text("Backfill", exact=True).click()
    for day in (FIRST, LAST):
        # The first empty picker each time: From, then To.
        form.get_by_text("Select date and time").first.click()
        page.get_by_placeholder("YYYY/MM/DD").last.fill(day.replace("-", "/"))
        page.get_by_placeholder("HH:mm").last.fill("00:00")
        page.get_by_placeholder("HH:mm").last.press("Enter")
        page.keyboard.press("Escape")
        page.wait_for_timeout(500)
    form = page.locator("[data-scope=dialog][data-part=content]")
    shoot("airflow-backfill", height=1100)
    form.get_by_role("button", name="Run Backfill").click()
    deadline = time.monotonic() + 60
    while len(made := [id for id in runs_of(airflow) if id.startswith("backfill")]) < 3:
        assert time.monotonic() < deadline, made
        page.wait_for_timeout(1000)
    page.goto("about:blank")  # a page that refreshes itself takes the processor from the runs
    days = []
    for run_id in sorted(made):
        run = airflow.wait_for_run(DAG_ID, run_id, timeout=RUN_SECONDS)
        assert run.state == "success"
        assert run.note is not None
        assert "; **promoted**" in run.note
        days.append(airflow.xcom(DAG_ID, run_id, "resolve_run", "day"))
    assert sorted(days) == ["2026-01-05", "2026-01-06", "2026-01-07"]


def test_the_grid_shows_the_days_and_a_task_its_log_and_links(page, stack, airflow, shoot):
    page.goto(f"{stack.airflow_url}/dags/{DAG_ID}")
    page.get_by_text("data", exact=True).first.wait_for()
    page.get_by_role("button", name="Expand all task groups").click()
    shoot("airflow-grid", rest_ms=3000)
    run_id = max(id for id in runs_of(airflow) if id.startswith("backfill"))
    page.goto(airflow.run_page(DAG_ID, run_id))
    page.get_by_role("button", name="Edit note").wait_for()
    shoot("airflow-run", rest_ms=3000)
    page.goto(f"{airflow.run_page(DAG_ID, run_id)}/tasks/train/mapped/0")
    page.get_by_text("examples_per_second").first.wait_for()
    for name in ("MLflow run", "Training log"):
        link = page.get_by_role("link", name=name)
        assert link.get_attribute("href").startswith(stack.mlflow_url)
    shoot("airflow-train", rest_ms=2000)
    page.goto(f"{airflow.run_page(DAG_ID, run_id)}/tasks/gate")
    page.get_by_role("link", name="Comparison in MLflow").wait_for()
    shoot("airflow-gate", rest_ms=2000)


@pytest.mark.parametrize(
    ("day", "answer", "decision"),
    [("2026-01-08", "Approve", "promoted"), ("2026-01-09", "Reject", "rejected")],
)
def test_in_ask_mode_a_person_decides(page, stack, airflow, shoot, day, answer, decision):
    form = open_form(page, stack)
    open_section(page, form, "Run")
    form.locator("input[name=element_day]").fill(day)
    open_section(page, form, "Comparison and decision")
    choose(form, "element_promote", "ask")
    run_id = press_trigger(page, form, airflow)
    page.goto("about:blank")  # a page that refreshes itself takes the processor from the run
    deadline = time.monotonic() + RUN_SECONDS
    while not any(
        task.task_id == "approve" and task.state in ("deferred", "awaiting_input")
        for task in airflow.task_instances(DAG_ID, run_id)
    ):
        assert not airflow.dag_run(DAG_ID, run_id).is_over
        assert time.monotonic() < deadline
        page.wait_for_timeout(2000)
    page.goto(f"{airflow.run_page(DAG_ID, run_id)}/tasks/approve/required_actions")
    page.get_by_text("Is this model to be served?").first.wait_for()
    shoot(f"airflow-{answer.lower()}", height=1100, rest_ms=2500)
    page.get_by_role("button", name=answer, exact=True).click()
    run = airflow.wait_for_run(DAG_ID, run_id, timeout=RUN_SECONDS)
    assert run.state == "success"
    assert airflow.xcom(DAG_ID, run_id, "approve", "decision") == decision
    assert run.note is not None
    assert f"**{decision}**" in run.note
