"""Addresses of MLflow's pages, for links in other screens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from tasks.config import PipelineConfig
from tasks.tracking.location import experiment_id, tracking_uri, without_credentials


def run_page(config: PipelineConfig, mlflow_run_id: str) -> str | None:
    """Page of a run; None when the tracking store has no pages (a database without a server)."""
    server = _server(config)
    if server is None:
        return None
    return f"{server}/#/experiments/{experiment_id(config)}/runs/{mlflow_run_id}"


def artifact_page(config: PipelineConfig, mlflow_run_id: str, path: str) -> str | None:
    """Page that shows an artifact of a run; None when the tracking store has no pages."""
    page = run_page(config, mlflow_run_id)
    return None if page is None else f"{page}/artifacts/{quote(path)}"


def compare_page(config: PipelineConfig, mlflow_run_ids: Sequence[str]) -> str | None:
    """Page that shows runs side by side; None when the tracking store has no pages."""
    server = _server(config)
    if server is None:
        return None
    runs = quote(json.dumps(list(mlflow_run_ids)))
    experiments = quote(json.dumps([experiment_id(config)]))
    return f"{server}/#/compare-runs?runs={runs}&experiments={experiments}"


def _server(config: PipelineConfig) -> str | None:
    uri = without_credentials(tracking_uri(config))
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else None
