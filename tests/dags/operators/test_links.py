"""Protects: the buttons lead only to addresses that a browser opens as web pages."""

import pytest

from dags.operators.links import (
    ComparisonLink,
    DashboardLink,
    DataDocsLink,
    MlflowRunLink,
    TrainingLogLink,
    web_addresses,
)


@pytest.mark.parametrize("url", ["http://127.0.0.1:5000/#/runs/1", "https://mlflow.example/x"])
def test_web_addresses_are_kept(url: str):
    assert web_addresses({"mlflow_run": url}) == {"mlflow_run": url}


@pytest.mark.parametrize(
    "bad", ["javascript:alert(1)", "sqlite:////var/mlflow.db", "http://", "runs/1", "", None, 7]
)
def test_everything_else_is_dropped(bad: object):
    assert web_addresses({"mlflow_run": bad}) == {}


@pytest.mark.parametrize("bad", [None, "http://a.b", ["http://a.b"]])
def test_what_is_no_mapping_is_dropped(bad: object):
    assert web_addresses(bad) == {}


def test_buttons_have_names_of_their_own():
    links = (MlflowRunLink(), ComparisonLink(), DataDocsLink(), TrainingLogLink(), DashboardLink())
    assert [link.name for link in links] == [
        "MLflow run",
        "Comparison in MLflow",
        "Data Docs",
        "Training log",
        "Dask dashboard",
    ]
    assert len({link.xcom_key for link in links}) == 5
