"""What people do in MLflow, in a real browser: days over time, a day, its models side by side."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.demo_command import DAG_ID
from tasks.local_stack.airflow_client import AirflowClient

pytestmark = [
    *(pytest.mark.browser, pytest.mark.integration, pytest.mark.slow),
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default"),
]

RUN_SECONDS = 900.0


@pytest.fixture(scope="module")
def day_run(airflow: AirflowClient) -> str:
    """A run that went through: the newest one, or one of the first day that can be run."""
    done = [
        run
        for run in airflow.dag_runs(DAG_ID)
        if run.state == "success" and run.note and "**promoted**" in run.note
    ]
    if done:
        return max(done, key=lambda run: str(run.ended)).run_id
    airflow.unpause(DAG_ID)
    run = airflow.trigger(DAG_ID, "day", parameters={"day": "2026-01-04"})
    assert airflow.wait_for_run(DAG_ID, run.run_id, timeout=RUN_SECONDS).state == "success"
    return run.run_id


def link_of(airflow: AirflowClient, run_id: str, task: str, link: str, index: int = -1) -> str:
    """Where a button of a task leads."""
    found = airflow.xcom(DAG_ID, run_id, task, f"_link_{link}", map_index=index)
    assert found, f"{task} has no {link}"
    return str(found)


@pytest.fixture(scope="module", autouse=True)
def settled(page: Any, stack: Any) -> None:
    """MLflow as somebody has it who trains models: that view chosen, the assistant closed."""
    page.goto(stack.mlflow_url)
    page.get_by_text("Model training", exact=True).first.click()
    assistant = page.get_by_text("MLflow Assistant", exact=True).last
    assistant.wait_for()
    assistant.locator("xpath=following::button[3]").click()
    assistant.wait_for(state="hidden")
    page.wait_for_timeout(1500)


def visit(page: Any, address: str) -> None:
    """Opens a page of MLflow anew, even where only the part behind # differs."""
    page.goto("about:blank")
    page.goto(address)


def drawn_charts(page: Any) -> int:
    """Charts in sight that show points or lines."""
    script = """() => [...document.querySelectorAll('.js-plotly-plot')].filter(plot =>
        plot.querySelector('.trace path, .points path, .point')).length"""
    page.wait_for_function(f"({script})() >= 3")
    return int(page.evaluate(script))


def test_the_experiment_lists_the_days(page, stack, airflow, day_run, shoot):
    day = airflow.xcom(DAG_ID, day_run, "resolve_run", "day")
    experiment = link_of(airflow, day_run, "resolve_run", "MlflowRunLink").rpartition("/runs/")[0]
    visit(page, f"{experiment}/runs")
    page.get_by_role("link", name="shop: all days").wait_for()
    page.get_by_role("link", name=day, exact=True).wait_for()
    shoot("mlflow-runs", rest_ms=3000)


def test_all_days_have_charts(page, stack, airflow, day_run, shoot):
    experiment = link_of(airflow, day_run, "resolve_run", "MlflowRunLink").rpartition("/runs/")[0]
    visit(page, f"{experiment}/runs")
    page.get_by_role("link", name="shop: all days").click()
    page.get_by_role("tab", name="Model metrics").click()
    page.get_by_placeholder("Search metric charts").fill("recall_at_20")
    page.get_by_text("recall_at_20 (", exact=False).first.wait_for()
    assert drawn_charts(page) >= 3
    shoot("mlflow-all-days", rest_ms=3000)


def test_a_day_says_what_was_decided_and_has_a_report(page, stack, airflow, day_run, shoot):
    address = link_of(airflow, day_run, "resolve_run", "MlflowRunLink")
    visit(page, address)
    page.get_by_text("Promoted: the candidate of", exact=False).first.wait_for()
    shoot("mlflow-day", rest_ms=2500)
    visit(page, f"{address}/artifacts/report.html")
    report = page.frame_locator("iframe").first
    report.get_by_text("recall", exact=False).first.wait_for()
    shoot("mlflow-report", rest_ms=3000)


def test_three_models_side_by_side(page, stack, airflow, day_run, shoot):
    visit(page, link_of(airflow, day_run, "compare", "ComparisonLink"))
    page.get_by_text("Comparing 3 Runs", exact=False).first.wait_for()
    shoot("mlflow-compare", height=1300, rest_ms=4000)


def test_the_training_has_its_log_and_the_data_their_docs(page, stack, airflow, day_run, shoot):
    visit(page, link_of(airflow, day_run, "train", "TrainingLogLink", index=0))
    page.get_by_text("examples_per_second", exact=False).first.wait_for()
    shoot("mlflow-training-log", rest_ms=2500)
    visit(page, link_of(airflow, day_run, "validate", "DataDocsLink"))
    page.locator("iframe").first.wait_for()
    shoot("mlflow-data-docs", rest_ms=4000)


def test_the_registry_shows_who_serves(page, stack, day_run, shoot):
    visit(page, f"{stack.mlflow_url}/#/models/shop")
    page.get_by_text("@ champion").first.wait_for()
    shoot("mlflow-registry", rest_ms=2500)
