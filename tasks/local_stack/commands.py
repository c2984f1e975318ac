"""`tailtower up`, `down` and `status`: the local stack as commands and as plain functions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tasks.local_stack.credentials import ensure_credentials, ensure_password_file
from tasks.local_stack.ports import choose_ports
from tasks.local_stack.services import describe
from tasks.local_stack.settings import StackSettings, settings_from_environment
from tasks.local_stack.state import StackInfo, forget_ports, load_stack_info, save_ports
from tasks.local_stack.supervisor import Supervisor, ports_in_use
from tasks.progress import console, log

_PORT_OF_SERVICE = {
    "airflow-api": "airflow",
    "airflow-execution": "execution",
    "mlflow": "mlflow",
}


def up(settings: StackSettings | None = None) -> StackInfo:
    """Starts what of the local stack is not running; returns when all of it answers.

    Args:
        settings: By default those of the working folder and the environment.

    Raises:
        StackError: A service did not start, or no port was free.
        ConfigError: An environment variable is wrong.
    """
    settings = settings or settings_from_environment()
    supervisor = _supervisor(settings)
    with supervisor.alone():
        kept = ports_in_use(supervisor.running(), _PORT_OF_SERVICE)
        ports, notes = choose_ports(settings.ports, kept)
        for note in notes:
            log(note)
        credentials = ensure_credentials(settings.airflow_home)
        ensure_password_file(settings.airflow_home)
        settings.mlflow_home.mkdir(parents=True, exist_ok=True)
        save_ports(settings.root, ports)
        supervisor.bring_up(describe(settings, ports, credentials))
    info = load_stack_info(settings.root)
    assert info is not None, "every service answered a moment ago"
    return info


def down(settings: StackSettings | None = None) -> list[str]:
    """Stops what `up` started and nothing else; returns the names of what was running."""
    settings = settings or settings_from_environment()
    supervisor = _supervisor(settings)
    with supervisor.alone():
        stopped = supervisor.take_down()
        forget_ports(settings.root)
    return stopped


def status(root: Path | None = None) -> StackInfo | None:
    """The running stack of the working folder (or of `root`), None when there is none."""
    return load_stack_info(root)


def show(info: StackInfo) -> None:
    """Prints where Airflow and MLflow are, and where the password is."""
    """Prints the addresses and the login."""
    for title, url, note in (
        ("Airflow", info.airflow_url, f"user {info.username}, password in {info.password_file}"),
        ("MLflow", info.mlflow_url, ""),
    ):
        console.print(f"{title:<8} {url}  {note}", highlight=False, soft_wrap=True)


def up_command(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="YAML file that scheduled runs use; default: conf/demo.yaml.",
            envvar="TAILTOWER_CONFIG",
        ),
    ] = None,
) -> None:
    """Start Airflow and MLflow on this machine, on the loopback address only.

    What already runs is left alone, so a second call returns at once. A taken port is replaced by
    the next free one.
    """
    began = time.monotonic()
    environment = {} if config is None else {"TAILTOWER_CONFIG": str(config)}
    info = up(settings_from_environment(extra=environment))
    show(info)
    console.print(f"up after {time.monotonic() - began:.0f} s; stop it with `tailtower down`")


def down_command() -> None:
    """Stop what `tailtower up` started, and nothing else."""
    stopped = down()
    console.print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


def status_command() -> None:
    """Show what of the local stack is running, and where. Exit status 1 when it is not complete."""
    info = status()
    if info is None:
        console.print("not running; start it with `tailtower up`")
        raise typer.Exit(1)
    show(info)
    for service, pid in sorted(info.running.items()):
        console.print(f"  {service:<22} pid {pid}", highlight=False)
    for service in info.stopped:
        console.print(f"  {service:<22} died; see {info.log_file(service)}", highlight=False)
    if not info.complete:
        console.print("`tailtower up` starts what is missing")
        raise typer.Exit(1)


def _supervisor(settings: StackSettings) -> Supervisor:
    return Supervisor(
        settings.root,
        start_timeout=settings.start_timeout,
        stop_timeout=settings.stop_timeout,
    )
