"""MLflow's server, on a database that is either complete or not there.

MLflow creates its tables in some eighty migrations, which SQLite does not undo: a process that is
killed in between leaves a database that no MLflow opens again ("duplicate column name"). So the
first one is made under another name.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def create_database(path: Path, artifact_root: str) -> None:
    """Makes a SQLite tracking database unless it is there; takes some seconds, all or nothing.

    Args:
        path: The database file.
        artifact_root: Where the experiment "Default" keeps its artifacts.
    """
    if path.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f"{path.name}.new-*"):
        leftover.unlink()
    temporary = path.with_name(f"{path.name}.new-{os.getpid()}")
    store = SqlAlchemyStore(f"sqlite:///{temporary}", artifact_root)  # type: ignore[no-untyped-call]
    store.engine.dispose()
    # A link, not a rename: it never replaces a database that somebody made meanwhile.
    with suppress(FileExistsError):
        path.hardlink_to(temporary)
    temporary.unlink()


def main(database: Path, arguments: list[str]) -> None:
    """Serves a tracking database until it is told to stop.

    Args:
        database: The SQLite file.
        arguments: Further options of `mlflow server`.
    """
    create_database(database, str(database.parent / "artifacts"))
    from mlflow.cli import cli

    # In this process: to import MLflow a second time would cost five seconds.
    cli(["server", "--backend-store-uri", f"sqlite:///{database}", *arguments])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
