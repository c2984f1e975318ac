"""Where the local stack keeps its files and which ports it prefers."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasks.command_options import DEFAULT_CONFIG
from tasks.errors import ConfigError

HOST = "127.0.0.1"
"""The only address anything here listens on."""

TRAINING_POOL = "training"
"""Airflow pool of the trainings."""

TRAINING_SLOTS = 2
"""Trainings at once: a run's candidate and a baseline, so that one computes while the other loads
its libraries. Only one run is active at a time."""

DEFAULT_PORTS = {"airflow": 8080, "execution": 8081, "mlflow": 5000}
_PORT_VARIABLES = {
    "airflow": "TAILTOWER_AIRFLOW_PORT",
    "execution": "TAILTOWER_EXECUTION_PORT",
    "mlflow": "TAILTOWER_MLFLOW_PORT",
}


@dataclass(frozen=True)
class StackSettings:
    """One local stack; everything it writes lies below `root/var`.

    Attributes:
        root: The working folder, absolute.
        dags_folder: Folder that Airflow reads DAGs from.
        ports: Preferred port by name (`airflow`, `execution`, `mlflow`); a taken one is replaced
            by the next free one.
        pipeline_config: YAML file that becomes `TAILTOWER_CONFIG` of the tasks, or None.
        with_triggerer: Start Airflow's triggerer too; only deferring operators need it.
        start_timeout: Seconds that one service may take to answer.
        stop_timeout: Seconds between SIGTERM and SIGKILL.
    """

    root: Path
    dags_folder: Path
    ports: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_PORTS))
    pipeline_config: Path | None = None
    with_triggerer: bool = False
    start_timeout: float = 300.0
    stop_timeout: float = 10.0

    @property
    def airflow_home(self) -> Path:
        """Airflow's database, logs and secrets."""
        return self.root / "var" / "airflow"

    @property
    def mlflow_home(self) -> Path:
        """MLflow's database and artifacts."""
        return self.root / "var" / "mlflow"

    @property
    def run_folder(self) -> Path:
        """Process records, service logs and the addresses of the running stack."""
        return self.root / "var" / "run"


def settings_from_environment(
    root: Path | None = None, *, extra: Mapping[str, str] | None = None
) -> StackSettings:
    """Settings for the working folder, or for `root`.

    Args:
        root: The stack's folder.
        extra: Variables that win over those of the environment.

    Raises:
        ConfigError: A port variable is no port, or TAILTOWER_CONFIG names no file.
    """
    variables = {**os.environ, **(extra or {})}
    folder = (root or Path.cwd()).resolve()
    return StackSettings(
        root=folder,
        dags_folder=_package_folder("dags"),
        ports={
            name: _port(variables, variable, DEFAULT_PORTS[name])
            for name, variable in _PORT_VARIABLES.items()
        },
        pipeline_config=_pipeline_config(folder, variables.get("TAILTOWER_CONFIG")),
        with_triggerer=variables.get("TAILTOWER_TRIGGERER", "").lower() in ("1", "true", "yes"),
    )


def code_root() -> Path:
    """The folder that `dags`, `tasks` and `models` are imported from."""
    return Path(__file__).resolve().parents[2]


def _port(variables: Mapping[str, str], variable: str, default: int) -> int:
    text = variables.get(variable, str(default))
    if not text.isdigit() or not 0 < int(text) < 2**16:
        raise ConfigError(
            f"{variable} is not a port number: {text!r}", fix="a number from 1 to 65535"
        )
    return int(text)


def _pipeline_config(root: Path, named: str | None) -> Path | None:
    if named is None:
        default = root / DEFAULT_CONFIG
        return default if default.is_file() else None
    # A relative name means the folder it was typed in; the services keep only the absolute one.
    path = (root / named).resolve()
    if not path.is_file():
        raise ConfigError("TAILTOWER_CONFIG names no file", where=str(path), fix="correct the path")
    return path


def _package_folder(name: str) -> Path:
    # find_spec, not import: the DAGs need Airflow and this process does not.
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the package '{name}' is not installed", fix="run: make setup")
    return Path(next(iter(spec.submodule_search_locations))).resolve()
