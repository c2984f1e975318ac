"""An empty MLflow store for each test that asks for one, and two finished days to look at.

Creating MLflow's tables costs seconds: one database is made and copied.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tasks.tracking.location import open_client

if TYPE_CHECKING:
    from tests.tasks.small_runs import TwoDays


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


@pytest.fixture(scope="session")
def two_days(_empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> TwoDays:
    """Two finished days of a tiny pipeline; only for reading."""
    # Here and not above: most tests below this folder need no torch.
    from tests.tasks.small_runs import make_two_days

    folder = tmp_path_factory.mktemp("two-days")
    shutil.copy(_empty_database, folder / "mlflow.db")
    return make_two_days(folder / "lake", f"sqlite:///{folder / 'mlflow.db'}")
