"""What anybody on this machine can learn about the stack of a working folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.local_stack.credentials import ADMIN, password_file, read_password
from tasks.local_stack.processes import ProcessRecord, is_running, read_record
from tasks.local_stack.settings import HOST

_RUN_FOLDER = Path("var/run")
_ADDRESSES = "stack.json"
_RECORD_SUFFIX = ".pid"


@dataclass(frozen=True)
class StackInfo:
    """Addresses and processes of a local stack.

    Attributes:
        root: Working folder of the stack.
        ports: Port by name: `airflow`, `execution`, `mlflow`.
        running: Process id by service name, of those that run now.
        stopped: Names of services that were started and have died.
    """

    root: Path
    ports: Mapping[str, int]
    running: Mapping[str, int]
    stopped: tuple[str, ...] = ()

    @property
    def airflow_url(self) -> str:
        """Airflow's pages and REST API."""
        return f"http://{HOST}:{self.ports['airflow']}"

    @property
    def mlflow_url(self) -> str:
        """MLflow's pages, and the tracking URI."""
        return f"http://{HOST}:{self.ports['mlflow']}"

    @property
    def username(self) -> str:
        """Airflow's only user."""
        return ADMIN

    @property
    def password_file(self) -> Path:
        """File that holds the user's password."""
        return password_file(self.root / "var" / "airflow")

    @property
    def password(self) -> str:
        """The user's password.

        Raises:
            StackError: Its file cannot be read.
        """
        return read_password(self.password_file)

    @property
    def complete(self) -> bool:
        """Whether everything that was started is still running."""
        return bool(self.running) and not self.stopped

    def log_file(self, service: str) -> Path:
        """Where a service writes what it has to say."""
        return self.root / _RUN_FOLDER / f"{service}.log"


def load_stack_info(root: Path | None = None) -> StackInfo | None:
    """The stack of the working folder (or of `root`); None when none of it is running."""
    folder = (root or Path.cwd()).resolve()
    records = read_records(folder)
    try:
        ports = json.loads((folder / _RUN_FOLDER / _ADDRESSES).read_text())["ports"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    running = {name: record.pid for name, record in records.items() if is_running(record)}
    if not running:
        return None
    stopped = tuple(sorted(set(records) - set(running)))
    return StackInfo(root=folder, ports=ports, running=running, stopped=stopped)


def save_ports(root: Path, ports: Mapping[str, int]) -> None:
    """Publishes the addresses of a stack."""
    path = root / _RUN_FOLDER / _ADDRESSES
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"ports": dict(ports)}, indent=2) + "\n")
    temporary.replace(path)


def forget_ports(root: Path) -> None:
    """Withdraws the addresses of a stack."""
    (root / _RUN_FOLDER / _ADDRESSES).unlink(missing_ok=True)


def record_path(root: Path, service: str) -> Path:
    """Where the process of a service is recorded."""
    return root / _RUN_FOLDER / f"{service}{_RECORD_SUFFIX}"


def read_records(root: Path) -> dict[str, ProcessRecord]:
    """Records of all services that were started and not stopped, dead ones included."""
    found = {}
    for path in sorted((root / _RUN_FOLDER).glob(f"*{_RECORD_SUFFIX}")):
        record = read_record(path)
        if record is not None:
            found[path.stem] = record
    return found
