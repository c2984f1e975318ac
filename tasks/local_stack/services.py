"""What the local stack consists of: commands, environments, and how each says that it is ready."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.local_stack.credentials import (
    ADMIN,
    Credentials,
    ensure_password_file,
    read_password,
)
from tasks.local_stack.settings import HOST, TRAINING_POOL, StackSettings, code_root

ReadyCheck = Callable[[float], bool]
_PROBE_SECONDS = 10.0


@dataclass(frozen=True)
class Service:
    """One process of the stack.

    Attributes:
        name: Short name, used for its record and its log.
        command: Program and arguments.
        environment: Variables on top of this process's own.
        ready: Whether it does its work now; asked, with the time at which its process started,
            until it says so.
        after: Names of services that must be ready before this one starts.
        port: Port it listens on, if any.
        stays: False for a job that ends when it is done; `ready` then says whether it is.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    ready: ReadyCheck
    after: tuple[str, ...] = ()
    port: int | None = None
    stays: bool = True
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        content = json.dumps([self.command, sorted(self.environment.items())])
        object.__setattr__(self, "fingerprint", hashlib.sha256(content.encode()).hexdigest()[:16])


def describe(
    settings: StackSettings, ports: Mapping[str, int], credentials: Credentials
) -> list[Service]:
    """All services of a stack, each after those it needs."""
    airflow = airflow_environment(settings, ports, credentials)
    core_url = f"http://{HOST}:{ports['airflow']}"
    services = [
        _mlflow(settings, ports["mlflow"]),
        _prepare_airflow(settings, airflow),
        _airflow(
            "airflow-execution",
            airflow,
            ("api-server", "--apps", "execution", *_listen(ports["execution"])),
            # Its first answer takes up to 23 s, and a task's client gives up after 5: the
            # scheduler must not start a task before it has been given.
            ready=answers(f"http://{HOST}:{ports['execution']}/execution/health"),
            port=ports["execution"],
        ),
        _airflow(
            "airflow-api",
            airflow,
            ("api-server", "--apps", "core", *_listen(ports["airflow"])),
            ready=answers(f"{core_url}/api/v2/monitor/health"),
            port=ports["airflow"],
        ),
        _airflow(
            "airflow-dag-processor",
            airflow,
            ("dag-processor",),
            ready=_beats(core_url, "dag_processor"),
        ),
        _airflow(
            "airflow-scheduler",
            airflow,
            # Without the flag it serves logs on every interface; the API reads them from disk.
            ("scheduler", "--skip-serve-logs"),
            ready=_beats(core_url, "scheduler"),
            after=("airflow-execution",),
        ),
    ]
    if settings.with_triggerer:
        services.append(
            _airflow(
                "airflow-triggerer",
                airflow,
                ("triggerer", "--skip-serve-logs"),
                ready=_beats(core_url, "triggerer"),
                after=("airflow-execution",),
            )
        )
    return services


def airflow_environment(
    settings: StackSettings, ports: Mapping[str, int], credentials: Credentials
) -> dict[str, str]:
    """The variables that every Airflow process, and so every task, gets."""
    home = settings.airflow_home
    options = {
        "CORE__DAGS_FOLDER": str(settings.dags_folder),
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "4",
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__FERNET_KEY": credentials.fernet_key,
        "CORE__EXECUTION_API_SERVER_URL": f"http://{HOST}:{ports['execution']}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN}:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "API__HOST": HOST,
        "API__BASE_URL": f"http://{HOST}:{ports['airflow']}",
        "API__INSTANCE_NAME": "Tailtower",
        "API__SECRET_KEY": credentials.secret_key,
        "API_AUTH__JWT_SECRET": credentials.jwt_secret,
        "WORKERS__EXECUTION_API_TIMEOUT": "30",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    variables = {
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": str(code_root()),
        "MLFLOW_TRACKING_URI": f"http://{HOST}:{ports['mlflow']}",
        # With it tasks write the notes of their runs.
        "AIRFLOW_CONN_TAILTOWER_AIRFLOW": json.dumps(
            {
                "conn_type": "http",
                "schema": "http",
                "host": HOST,
                "port": ports["airflow"],
                "login": ADMIN,
                "password": read_password(ensure_password_file(home)),
            }
        ),
        **{f"AIRFLOW__{name}": value for name, value in options.items()},
    }
    if settings.pipeline_config is not None:
        variables["TAILTOWER_CONFIG"] = str(settings.pipeline_config)
    return variables


def process_environment(service: Service) -> dict[str, str]:
    """The complete environment of a service's process."""
    inherited = {
        # It would make every process compile what it imports again: 50 s of CPU instead of 20.
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE"
    }
    return {**inherited, **service.environment}


def prepared_marker(airflow_home: Path) -> Path:
    """Written when Airflow's database is complete; holds the version that it is complete for."""
    return airflow_home / "prepared"


def answers(url: str) -> ReadyCheck:
    """A check that an URL answers with success."""
    return lambda _: _get(url) is not None


def _prepare_airflow(settings: StackSettings, environment: Mapping[str, str]) -> Service:
    marker = prepared_marker(settings.airflow_home)
    version = metadata.version("apache-airflow-core")

    def is_prepared(_: float) -> bool:
        return marker.is_file() and marker.read_text() == version

    module = "tasks.local_stack.prepare_airflow"
    return Service(
        name="airflow-database",
        command=(sys.executable, "-m", module, str(marker), TRAINING_POOL),
        environment=environment,
        ready=is_prepared,
        stays=False,
    )


def _airflow(
    name: str,
    environment: Mapping[str, str],
    arguments: tuple[str, ...],
    *,
    ready: ReadyCheck,
    after: tuple[str, ...] = (),
    port: int | None = None,
) -> Service:
    return Service(
        name=name,
        command=(sys.executable, "-m", "airflow", *arguments),
        environment=environment,
        ready=ready,
        after=("airflow-database", *after),
        port=port,
    )


def _listen(port: int) -> tuple[str, ...]:
    return ("--host", HOST, "--port", str(port), "--workers", "1")


def _mlflow(settings: StackSettings, port: int) -> Service:
    home = settings.mlflow_home
    return Service(
        name="mlflow",
        command=(
            sys.executable, "-m", "tasks.local_stack.serve_mlflow", str(home / "mlflow.db"),
            "--host", HOST, "--port", str(port),
            # Four workers and the job runners of the default take 1.9 GB.
            "--workers", "1",
            # Clients are on this machine and write where the server reads; its proxy would copy
            # every model twice over HTTP.
            "--no-serve-artifacts", "--default-artifact-root", str(home / "artifacts"),
        ),
        environment={
            "PYTHONPATH": str(code_root()),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        ready=answers(f"http://{HOST}:{port}/health"),
        port=port,
    )  # fmt: skip


def _beats(core_url: str, component: str) -> ReadyCheck:
    """A check that an Airflow component without a port of its own has a recent heartbeat.

    Airflow goes on calling a component healthy for half a minute after its death, so a heartbeat
    of the process before does not count.
    """

    def check(started: float) -> bool:
        body = _get(f"{core_url}/api/v2/monitor/health")
        if body is None:
            return False
        health: dict[str, Any] = json.loads(body).get(component) or {}
        beat = health.get(f"latest_{component}_heartbeat")
        return (
            health.get("status") == "healthy"
            and beat is not None
            and datetime.fromisoformat(beat).timestamp() >= started
        )

    return check


def _get(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_SECONDS) as response:
            return bytes(response.read())
    except (urllib.error.URLError, OSError):
        return None
