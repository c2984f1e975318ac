"""MLflow runs of a day: one parent, one child for each model."""

from __future__ import annotations

import getpass
import json
import math
import time
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tasks.config import PipelineConfig
from tasks.errors import UpstreamError
from tasks.lake import Lake, Published
from tasks.run_spec import RunSpec
from tasks.tracking.location import (
    client,
    experiment_id,
    tracking_errors,
    tracking_uri,
    without_credentials,
)
from tasks.version import code_version

if TYPE_CHECKING:
    from mlflow.entities import Run

RUN_ID = "tailtower.run_id"
DAY = "tailtower.day"
ROLE = "tailtower.role"
LAKE = "tailtower.lake"
PARENT = "parent"
"""Value of the role tag on the run that holds a day's models."""

_PARAMS_AT_ONCE = 100
_METRICS_AT_ONCE = 1000
_VALUE_LENGTH = 6000
_TAG_LENGTH = 8000


def start_parent_run(run_id: str, day: date, config: PipelineConfig) -> str:
    """The MLflow run that holds a day's models; made on the first call.

    Args:
        run_id: The tailtower run; the same one always gets the same MLflow run.
        day: Day of the run, which is its name in MLflow.
        config: All settings; they become the parameters.

    Returns:
        The MLflow run id.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    return _get_or_create(config, run_id, day, PARENT, day.isoformat(), {})


def start_child_run(spec: RunSpec, role: str) -> str:
    """The MLflow run of one model of a run; made on the first call.

    Args:
        spec: The run.
        role: `candidate` or the baseline's name.

    Returns:
        The MLflow run id.

    Raises:
        TrackingError: MLflow cannot be reached.
        UpstreamError: The run has no parent run in MLflow.
    """
    tags = {"mlflow.parentRunId": parent_of(spec)}
    name = f"{spec.day.isoformat()} {role}"
    return _get_or_create(spec.config, spec.run_id, spec.day, role, name, tags)


def parent_of(spec: RunSpec) -> str:
    """MLflow id of a run's parent run.

    Raises:
        UpstreamError: The run was resolved without one.
    """
    if spec.mlflow_run_id is None:
        raise UpstreamError(
            "the run has no MLflow run", where=spec.uri, fix="resolve the run again"
        )
    return spec.mlflow_run_id


def find_run(config: PipelineConfig, run_id: str, role: str = PARENT) -> str | None:
    """MLflow id of a tailtower run's parent or child run, if it was started."""
    experiment = experiment_id(config)
    # Two lakes with the same settings and days have runs of the same name.
    query = (
        f"tags.`{RUN_ID}` = '{run_id}' and tags.`{ROLE}` = '{role}' "
        f"and tags.`{LAKE}` = '{lake_tag(config)}'"
    )
    with tracking_errors("looking for a run", tracking_uri(config)):
        found = client(config).search_runs([experiment], query, max_results=1)
    return found[0].info.run_id if found else None


def get_run(config: PipelineConfig, mlflow_run_id: str) -> Run:
    """An MLflow run with its metrics, parameters and tags."""
    with tracking_errors(f"reading run {mlflow_run_id}", tracking_uri(config)):
        return client(config).get_run(mlflow_run_id)


def finish_run(
    config: PipelineConfig,
    mlflow_run_id: str,
    status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED",
) -> None:
    """Ends an MLflow run; ending it again changes its status."""
    with tracking_errors(f"ending run {mlflow_run_id}", tracking_uri(config)):
        client(config).set_terminated(mlflow_run_id, status)


def end_open_runs(config: PipelineConfig, run_id: str, status: Literal["FAILED", "KILLED"]) -> int:
    """Ends what MLflow still calls running of a tailtower run; returns how many runs that were."""
    query = f"tags.`{RUN_ID}` = '{run_id}' and tags.`{LAKE}` = '{lake_tag(config)}'"
    with tracking_errors(f"looking for runs of {run_id}", tracking_uri(config)):
        found = client(config).search_runs(
            [experiment_id(config)], f"{query} and attributes.status = 'RUNNING'"
        )
    for run in found:
        finish_run(config, run.info.run_id, status)
    return len(found)


def log_values(
    config: PipelineConfig,
    mlflow_run_id: str,
    *,
    metrics: Mapping[str, float] | None = None,
    tags: Mapping[str, str] | None = None,
    step: int = 0,
) -> None:
    """Logs metrics and tags in as few requests as possible.

    Numbers that are not finite are left out, because MLflow's charts cannot show them.
    """
    from mlflow.entities import Metric, RunTag

    now = int(time.time() * 1000)
    points = [
        Metric(name, float(value), now, step)
        for name, value in (metrics or {}).items()
        if math.isfinite(value)
    ]
    labels = [RunTag(name, value[:_TAG_LENGTH]) for name, value in (tags or {}).items()]
    with tracking_errors(f"writing to run {mlflow_run_id}", tracking_uri(config)):
        for start in range(0, max(len(points), 1), _METRICS_AT_ONCE):
            client(config).log_batch(
                mlflow_run_id,
                metrics=points[start : start + _METRICS_AT_ONCE],
                tags=labels if start == 0 else (),
                synchronous=True,
            )


def log_artifacts(config: PipelineConfig, mlflow_run_id: str, files: Mapping[str, str]) -> None:
    """Writes text files (HTML, JSON, SVG, Markdown) as artifacts, by artifact path."""
    with tracking_errors(f"writing artifacts of run {mlflow_run_id}", tracking_uri(config)):
        for path, text in files.items():
            client(config).log_text(mlflow_run_id, text, path)


def log_artifact_files(
    config: PipelineConfig, mlflow_run_id: str, folder: str, files: Iterable[Path]
) -> None:
    """Copies local files to a folder of a run's artifacts."""
    with tracking_errors(f"writing artifacts of run {mlflow_run_id}", tracking_uri(config)):
        for path in files:
            client(config).log_artifact(mlflow_run_id, str(path), folder)


def log_dataset_inputs(
    spec: RunSpec, mlflow_run_id: str, inputs: Mapping[str, tuple[str, Published]]
) -> None:
    """Records data sets as inputs of an MLflow run.

    Args:
        spec: The run.
        mlflow_run_id: Parent or child run.
        inputs: By name of the data set, its context (`training`, `evaluation`) and the published
            output.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    lake = spec.lake()
    entries = [
        DatasetInput(
            Dataset(
                name=name,
                digest=published.digest,
                source_type="local" if lake.is_local else "fsspec",
                source=json.dumps({"uri": f"{without_credentials(lake.url)}/{published.path}"}),
                profile=json.dumps(
                    {"num_rows": published.manifest.rows, "files": len(published.manifest.files)}
                ),
            ),
            [InputTag("mlflow.data.context", context)],
        )
        for name, (context, published) in inputs.items()
    ]
    with tracking_errors(f"recording inputs of run {mlflow_run_id}", tracking_uri(spec.config)):
        client(spec.config).log_inputs(mlflow_run_id, entries)


def flat_params(config: PipelineConfig) -> dict[str, str]:
    """All settings as MLflow parameters: `training.optimizer.learning_rate` → `0.01`.

    List elements that have a name are addressed by it (`model.user.features.history.pooling`);
    other lists are one JSON value. The tracking URI is left out, since it may hold a password.
    """
    body = config.model_dump(mode="json")
    body["tracking"].pop("uri")
    body["lake"] = without_credentials(body["lake"])
    return {key: text[:_VALUE_LENGTH] for key, text in _flatten("", body).items()}


def _flatten(prefix: str, value: Any) -> dict[str, str]:
    if (
        isinstance(value, list)
        and value
        and all(isinstance(v, dict) and "name" in v for v in value)
    ):
        value = {v["name"]: {k: inner for k, inner in v.items() if k != "name"} for v in value}
    if isinstance(value, dict) and value:
        flat = {}
        for key, inner in value.items():
            flat.update(_flatten(f"{prefix}.{key}" if prefix else key, inner))
        return flat
    return {prefix: value if isinstance(value, str) else json.dumps(value)}


def _get_or_create(
    config: PipelineConfig,
    run_id: str,
    day: date,
    role: str,
    name: str,
    tags: Mapping[str, str],
) -> str:
    from mlflow.entities import Param

    found = find_run(config, run_id, role)
    mlflow = client(config)
    with tracking_errors(f"starting run '{name}'", tracking_uri(config)):
        if found is None:
            created = mlflow.create_run(
                experiment_id(config),
                run_name=name,
                tags={
                    RUN_ID: run_id,
                    DAY: day.isoformat(),
                    ROLE: role,
                    LAKE: lake_tag(config),
                    "tailtower.pipeline": config.name,
                    "tailtower.code_version": code_version(),
                    "mlflow.source.name": "tailtower",
                    "mlflow.source.git.commit": code_version().partition("+")[2],
                    "mlflow.user": _user(),
                    **tags,
                },
            )
            found = created.info.run_id
            known = {}
        else:
            run = mlflow.get_run(found)
            known = run.data.params
            if run.info.status != "RUNNING":
                mlflow.update_run(found, status="RUNNING")
        # MLflow never changes a parameter: a run that is taken up again keeps those it has.
        # The role, because MLflow's comparison draws lines between what differs.
        wanted = {**flat_params(config), "role": role}
        params = [Param(k, v) for k, v in wanted.items() if k not in known]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            batch = params[start : start + _PARAMS_AT_ONCE]
            mlflow.log_batch(found, params=batch, synchronous=True)
    return found


def lake_tag(config: PipelineConfig) -> str:
    """Value of the tag that tells pipelines with the same settings apart."""
    return without_credentials(Lake(config.lake).url)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an uid without a name, as in many containers
        return "unknown"
