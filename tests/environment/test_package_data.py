"""Protects: an installed copy has every file that it reads, not only the Python modules."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
READ = (
    "dags/.airflowignore",
    "tasks/report/comparison.html.j2",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "data_contracts").glob("*.yaml")),
)


@pytest.mark.filterwarnings("default")  # setuptools' own
def test_package_data_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    setuptools: Any = importlib.import_module("setuptools")
    monkeypatch.chdir(ROOT)
    distribution = setuptools.Distribution()
    distribution.parse_config_files(["pyproject.toml"])
    # Else it writes a manifest into the work tree; what is tested are the patterns.
    distribution.include_package_data = False
    command = distribution.get_command_obj("build_py")
    command.ensure_finalized()
    packed = {
        os.path.normpath(Path(source) / name)
        for _, source, _, names in command.data_files
        for name in names
    }
    assert len(READ) > 4
    assert set(READ) <= packed
