"""Finding finished runs by what a person calls them: run id, day, or MLflow run id."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tasks.config import PipelineConfig
from tasks.errors import ConfigError
from tasks.lake import Lake
from tasks.run_spec import RUN_SPEC, RunSpec, load_run_spec

_MLFLOW_ID = re.compile(r"^[0-9a-f]{32}$")
_DAY = re.compile(r"^\d{4}-\d{2}-\d{2}$")


@dataclass(frozen=True)
class NamedModel:
    """A model of a finished run.

    Attributes:
        spec: The run.
        role: `candidate`, `champion` or a baseline's name.
    """

    spec: RunSpec
    role: str = "candidate"

    @property
    def label(self) -> str:
        """What it is called in a table."""
        return self.spec.run_id if self.role == "candidate" else f"{self.spec.run_id}:{self.role}"


def find_model(config: PipelineConfig, name: str) -> NamedModel:
    """A model by the name of its run.

    Args:
        config: Says where the lake and MLflow are.
        name: Run id, day (its newest measured run), or MLflow run id; `:ROLE` at the end chooses
            another model than the candidate.

    Raises:
        ConfigError: There is no such run, or it was not measured.
    """
    run, _, role = name.partition(":")
    lake = Lake(config.lake)
    if _MLFLOW_ID.match(run):
        run, found_role = _by_mlflow_id(config, run)
        role = role or found_role
    elif _DAY.match(run):
        run = _newest_of(lake, run)
    if not lake.exists(f"runs/{run}/{RUN_SPEC}"):
        known = ", ".join(lake.list_folders("runs")[-5:]) or "none"
        raise ConfigError(
            f"there is no run '{run}'",
            where=f"{lake.url}/runs",
            fix=f"give a run id, a day or an MLflow run id; newest runs: {known}",
        )
    spec = load_run_spec(f"{lake.url}/runs/{run}/{RUN_SPEC}")
    if spec.result("evaluate") is None:
        raise ConfigError(
            f"run '{run}' was not measured yet",
            where=spec.uri,
            fix=f"finish it: `tailtower run --day {spec.day}`",
        )
    return NamedModel(spec, role or "candidate")


def newest_run(config: PipelineConfig) -> RunSpec:
    """The run of the newest day that was compared.

    Raises:
        ConfigError: There is none.
    """
    lake = Lake(config.lake)
    for name in reversed(lake.list_folders("runs")):
        if lake.exists(f"runs/{name}/compare.json"):
            return load_run_spec(f"{lake.url}/runs/{name}/{RUN_SPEC}")
    raise ConfigError(
        "no run has been compared yet", where=f"{lake.url}/runs", fix="start with `tailtower run`"
    )


def _newest_of(lake: Lake, day: str) -> str:
    runs = [name for name in lake.list_folders("runs") if name.startswith(day)]
    measured = [name for name in runs if lake.exists(f"runs/{name}/evaluate.json")]
    if not runs:
        return day
    # Of several runs of a day, the one that was measured last.
    return max(measured or runs, key=lambda name: _measured_at(lake, name))


def _measured_at(lake: Lake, run: str) -> float:
    files = {info.base_name: info.mtime_ns for info in lake.list_files(f"runs/{run}")}
    return float(files.get("evaluate.json") or 0)


def _by_mlflow_id(config: PipelineConfig, mlflow_run_id: str) -> tuple[str, str]:
    from tasks.tracking.runs import PARENT, ROLE, RUN_ID, get_run

    tags = get_run(config, mlflow_run_id).data.tags
    if RUN_ID not in tags:
        raise ConfigError(
            f"the MLflow run {mlflow_run_id} was not made by tailtower",
            where=config.tracking.experiment,
            fix="give a run of this pipeline's experiment",
        )
    role = tags.get(ROLE, PARENT)
    return tags[RUN_ID], "candidate" if role == PARENT else role
