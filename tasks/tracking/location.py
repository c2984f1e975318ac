"""Where MLflow lives, and clients for it.

MLflow costs seconds and half a gigabyte to import: it is imported inside functions, and only by
the processes that talk to it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import PipelineConfig
from tasks.errors import ConfigError, TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

STORE_FOLDER = Path("var/mlflow")
"""Database and artifacts when no server is configured, relative to the working folder."""

# A step asks a handful of questions: MLflow's own patience (7 retries of 120 s, doubling pauses)
# would hide a dead server for a quarter of an hour. The scheduler retries the whole step.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # The last line on standard output is a step's result.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
for _name, _value in _ENVIRONMENT.items():  # before anything imports MLflow, which reads some once
    os.environ.setdefault(_name, _value)
_OF_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
"""Tag by which MLflow's pages show runs and models first, not traces of prompts."""
_CREDENTIALS = re.compile(r"(?<=//)[^/@]+@")


def store_uri() -> str:
    """The SQLite store under the working folder, which the local stack's server uses as well."""
    return f"sqlite:///{(STORE_FOLDER / 'mlflow.db').absolute()}"


def store_artifacts() -> Path:
    """Artifacts beside the SQLite store."""
    return (STORE_FOLDER / "artifacts").absolute()


def tracking_uri(config: PipelineConfig) -> str:
    """The tracking URI of a pipeline.

    In this order: `tracking.uri` of the configuration, `MLFLOW_TRACKING_URI`, the server of the
    local stack while it runs, the SQLite store under `var/mlflow`.
    """
    return (
        config.tracking.uri
        or os.environ.get("MLFLOW_TRACKING_URI")
        or _local_server()
        or store_uri()
    )


def _local_server() -> str | None:
    from tasks.local_stack.state import load_stack_info

    stack = load_stack_info()
    return stack.mlflow_url if stack is not None and "mlflow" in stack.running else None


def without_credentials(url: str) -> str:
    """The URL without user name and password, for messages and records."""
    return _CREDENTIALS.sub("", url)


def client(config: PipelineConfig) -> MlflowClient:
    """A client of the pipeline's tracking server and model registry.

    Raises:
        TrackingError: The server or database cannot be reached.
    """
    return open_client(tracking_uri(config))


@functools.lru_cache(maxsize=8)
def open_client(uri: str) -> MlflowClient:
    """A client of the tracking server and model registry at a URI; one for each URI."""
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).absolute().parent.mkdir(parents=True, exist_ok=True)
    from mlflow import MlflowClient

    with tracking_errors("opening the tracking store", uri):
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def experiment_id(config: PipelineConfig) -> str:
    """The pipeline's experiment, made when it is not there yet.

    Raises:
        TrackingError: The server cannot be reached.
        ConfigError: An experiment of that name was deleted.
    """
    name = config.tracking.experiment
    mlflow = client(config)
    with tracking_errors(f"opening the experiment '{name}'", tracking_uri(config)):
        found = mlflow.get_experiment_by_name(name)
        if found is None:
            try:
                return str(
                    mlflow.create_experiment(name, _artifact_location(config), tags=_OF_TRAINING)
                )
            except Exception as error:
                # Two runs may start at once; the one that comes second takes the first one's.
                if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = mlflow.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            raise ConfigError(
                f"the MLflow experiment '{name}' was deleted",
                where=without_credentials(tracking_uri(config)),
                fix=f"`mlflow experiments restore --experiment-id {found.experiment_id}`, "
                "or choose another tracking.experiment",
            )
        return str(found.experiment_id)


def _artifact_location(config: PipelineConfig) -> str | None:
    """Folder of a new experiment's artifacts; None leaves the choice to the server.

    A database file says nothing about artifacts, and MLflow would put them below whatever the
    working folder is: they belong beside the database. With the local stack the same folder is
    used, so that runs stay readable when its server is down.
    """
    uri = tracking_uri(config)
    if uri in (store_uri(), _local_server()):
        folder = store_artifacts()
    elif uri.startswith("sqlite:///"):
        folder = Path(uri.removeprefix("sqlite:///")).absolute().parent / "artifacts"
    else:
        return None
    return (folder / config.tracking.experiment).as_uri()


@contextmanager
def tracking_errors(doing: str, uri: str) -> Iterator[None]:
    """Turns MLflow's and its transports' exceptions into errors of this product.

    Raises:
        ConfigError: The server refuses these credentials.
        TrackingError: Everything else.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        where = without_credentials(uri)
        reason = without_credentials(str(error)).strip().splitlines() or [type(error).__name__]
        if getattr(error, "error_code", None) in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
            raise ConfigError(
                f"MLflow refused {doing}: {reason[0]}",
                where=where,
                fix="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or a token",
            ) from error
        raise TrackingError(
            f"MLflow failed at {doing}: {reason[0]}",
            where=where,
            fix="check that the server runs and answers at this address; the step can be repeated",
        ) from error
