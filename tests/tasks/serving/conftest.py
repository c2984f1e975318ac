"""A day with coloured items to filter by."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tasks.serving.category_days import CategoryDay


@pytest.fixture(scope="session")
def category_day(_empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> CategoryDay:
    """A run whose candidate is trained; only for reading."""
    from tests.tasks.serving.category_days import make_category_day

    folder = tmp_path_factory.mktemp("category-day")
    shutil.copy(_empty_database, folder / "mlflow.db")
    return make_category_day(folder / "lake", f"sqlite:///{folder / 'mlflow.db'}")
