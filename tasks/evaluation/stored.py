"""Reading what the steps evaluate and compare left in the lake."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tasks.evaluation.comparison import ModelComparison, ModelSummary
from tasks.lake import Lake, Published
from tasks.run_spec import RunSpec

COMPARISON = "comparison.json"
PER_USER = "per_user.parquet"
SAMPLES = "samples.parquet"


def read_comparison(spec: RunSpec) -> ModelComparison:
    """The comparison of a run.

    Raises:
        UpstreamError: The run has not been compared.
    """
    published = spec.output("compare", "comparison")
    return ModelComparison.model_validate_json(spec.lake().read_text(published.file(COMPARISON)))


def read_per_user(lake: Lake, evaluation: Published) -> pa.Table:
    """Per-user rows of all models of an evaluation."""
    return lake.read_table(evaluation.file(PER_USER))


def summary(name: str, facts: dict[str, Any]) -> ModelSummary:
    """A model as the step evaluate described it."""
    return ModelSummary.model_validate({"name": name, **facts})
