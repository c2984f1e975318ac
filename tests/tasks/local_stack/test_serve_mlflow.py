"""MLflow's database appears complete or not at all."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.local_stack.serve_mlflow import create_database
from tests.tasks.local_stack.helpers import wait_for

CREATE = (
    "import sys, pathlib; from tasks.local_stack.serve_mlflow import create_database;"
    " create_database(pathlib.Path(sys.argv[1]), 'mlflow-artifacts:/')"
)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(300)
def test_a_kill_in_the_middle_of_the_migrations_does_no_harm(tmp_path: Path):
    database = tmp_path / "mlflow.db"
    with subprocess.Popen([sys.executable, "-c", CREATE, str(database)], cwd=Path.cwd()) as first:
        wait_for(lambda: any(tmp_path.glob("mlflow.db.new-*")), seconds=120)
        os.kill(first.pid, signal.SIGKILL)
    assert not database.exists()

    subprocess.run([sys.executable, "-c", CREATE, str(database)], cwd=Path.cwd(), check=True)
    with sqlite3.connect(database) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master")}
    connection.close()
    assert {"experiments", "runs", "metrics", "alembic_version"} <= tables
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_database_that_is_there_is_left_alone(tmp_path: Path):
    database = tmp_path / "mlflow.db"
    database.write_bytes(b"somebody's")
    create_database(database, "mlflow-artifacts:/")
    assert database.read_bytes() == b"somebody's"
