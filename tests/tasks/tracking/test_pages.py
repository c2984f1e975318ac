"""Links lead to the right page of the right server, and there is none where there is no page."""

from urllib.parse import parse_qs, urlsplit

import pytest

from tasks.config_file import load_config
from tasks.tracking import pages
from tasks.version import PROJECT_ROOT


@pytest.fixture
def config(monkeypatch):
    monkeypatch.setattr(pages, "experiment_id", lambda config: "7")

    def make(uri):
        return load_config(PROJECT_ROOT / "conf" / "demo.yaml", [f"tracking.uri={uri}"])

    return make


def test_run_page(config):
    assert (
        pages.run_page(config("http://127.0.0.1:5000/"), "abc")
        == "http://127.0.0.1:5000/#/experiments/7/runs/abc"
    )


def test_artifact_page(config):
    page = pages.artifact_page(config("http://host"), "abc", "a b/docs.html")
    assert page == "http://host/#/experiments/7/runs/abc/artifacts/a%20b/docs.html"


def test_compare_page_names_runs_and_experiment(config):
    page = pages.compare_page(config("https://user:secret@host"), ["abc", "def"])
    assert page is not None
    assert page.startswith("https://host/#/compare-runs?")
    query = parse_qs(urlsplit(page.replace("#/", "")).query)
    assert query == {"runs": ['["abc", "def"]'], "experiments": ['["7"]']}


def test_a_database_has_no_pages(config):
    assert pages.run_page(config("sqlite:///x.db"), "abc") is None
    assert pages.compare_page(config("sqlite:///x.db"), ["abc"]) is None
    assert pages.artifact_page(config("sqlite:///x.db"), "abc", "x.html") is None
