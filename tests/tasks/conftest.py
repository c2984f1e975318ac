"""An empty MLflow store for each test that asks for one.

Creating MLflow's tables costs seconds: one database is made and copied.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.tracking.location import open_client


@pytest.fixture(scope="session")
def _empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    open_client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def mlflow_uri(_empty_database: Path, tmp_path: Path) -> str:
    """Tracking URI of an empty store in the test's own folder."""
    path = tmp_path / "mlflow" / "mlflow.db"
    path.parent.mkdir()
    shutil.copy(_empty_database, path)
    return f"sqlite:///{path}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # MLflow 3.17 calls what SQLAlchemy 2.1 has deprecated; every query of its store warns.
    mark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
    for item in items:
        if "mlflow_uri" in getattr(item, "fixturenames", ()):
            item.add_marker(mark)
