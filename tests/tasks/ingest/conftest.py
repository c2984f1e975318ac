"""Helpers for tests of the ingest: write a source, read a lake back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.lake import Lake

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    """Writes a text file and returns its path."""

    def write_file(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
        return str(path)

    return write_file


@pytest.fixture
def rows_of() -> Callable[..., list[dict[str, Any]]]:
    """Reads all rows of a data set, day by day, checking that each lies in its day."""

    def read(lake: Lake, dataset: str = "raw/interactions") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for day in lake.days(dataset):
            published = lake.partition(dataset, day)
            assert published is not None
            for row in lake.read_tables(published).to_pylist():
                if dataset == "raw/interactions":
                    assert row["timestamp"].date() == day
                rows.append({**row, "dt": str(day)} if dataset != "raw/interactions" else row)
        return rows

    return read


@pytest.fixture
def shared_data() -> Path:
    path = Path(os.environ.get("TAILTOWER_SHARED_DATA", REPOSITORY / ".." / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"the shared data sets are not at {path}")
    return path
