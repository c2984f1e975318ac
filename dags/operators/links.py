"""Buttons on a task that lead to its page in MLflow.

A step reports addresses: while it runs with an event `links` (one fact an address), at its end
in the fact `links` of its result. The operator keeps them in XCom, where the UI finds them, so a
button works as soon as its address is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.types import TaskInstanceKey

EVENT = "links"


class StepLink(BaseOperatorLink):
    """A button for one kind of address."""

    label: str
    """Text of the button."""
    address: str
    """Name under which steps report the address."""

    @property
    def name(self) -> str:
        """Text of the button."""
        return self.label

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address that the step reported in this attempt; empty when it reported none."""
        links: Mapping[str, str] = getattr(operator, "links", {})
        return links.get(self.address, "")


class MlflowRunLink(StepLink):
    """The MLflow run of a training."""

    label = "MLflow run"
    address = "mlflow_run"


class TrainingLogLink(StepLink):
    """What the ranks wrote, in MLflow; while they run it is in the task's own log."""

    label = "Training log"
    address = "training_log"


class DashboardLink(StepLink):
    """Dask's dashboard; it answers while the step runs."""

    label = "Dask dashboard"
    address = "dask_dashboard"


class ComparisonLink(StepLink):
    """The runs of the day side by side in MLflow."""

    label = "Comparison in MLflow"
    address = "comparison"


class DataDocsLink(StepLink):
    """What the data contracts found, as Great Expectations' Data Docs."""

    label = "Data Docs"
    address = "data_docs"


def web_addresses(reported: object) -> dict[str, str]:
    """Those of the reported values that a browser can open, by name."""
    if not isinstance(reported, Mapping):
        return {}
    return {str(name): value for name, value in reported.items() if _is_web(value)}


def _is_web(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    parts = urlsplit(value)
    return parts.scheme in ("http", "https") and bool(parts.netloc)
