"""One MLflow run whose charts show every day of a pipeline: quality, vocabulary, speed, memory.

MLflow draws a metric over the steps of one run, not over runs; so each day is a step of the run
`all days`. A point's time is its day, for charts over time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time

from tasks.config import PipelineConfig
from tasks.tracking.location import client, experiment_id, tracking_errors, tracking_uri
from tasks.tracking.runs import LAKE, ROLE, finish_run, lake_tag

NAME = "all days"
_ROLE = "all_days"
_FIRST = date(1970, 1, 1)
_NOTE = (
    "Every day of the pipeline is a step of this run (days since 1970-01-01). *Model metrics* has "
    "the charts; *Time* on their x axis shows dates."
)


def record_day(config: PipelineConfig, day: date, values: Mapping[str, float]) -> str:
    """Adds a day to the charts; adding the same values again changes nothing.

    Args:
        config: The pipeline.
        day: Day of the run.
        values: Metrics by name; those that are not finite are left out.

    Returns:
        The MLflow run.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    from mlflow.entities import Metric

    run_id = _find_or_create(config)
    moment = int(datetime.combine(day, time(), UTC).timestamp() * 1000)
    points = [
        Metric(name, float(value), moment, (day - _FIRST).days)
        for name, value in values.items()
        if math.isfinite(value)
    ]
    with tracking_errors(f"writing to run {run_id}", tracking_uri(config)):
        client(config).log_batch(run_id, metrics=points, synchronous=True)
    return run_id


def _find_or_create(config: PipelineConfig) -> str:
    experiment, lake = experiment_id(config), lake_tag(config)
    query = f"tags.`{ROLE}` = '{_ROLE}' and tags.`{LAKE}` = '{lake}'"
    with tracking_errors(f"looking for the run '{NAME}'", tracking_uri(config)):
        found = client(config).search_runs([experiment], query, max_results=1)
        if found:
            return found[0].info.run_id
        tags = {ROLE: _ROLE, LAKE: lake, "mlflow.note.content": _NOTE}
        created = client(config).create_run(
            experiment, run_name=f"{config.name}: {NAME}", tags=tags
        )
    finish_run(config, created.info.run_id)
    return created.info.run_id
