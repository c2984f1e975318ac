"""Protects: an installed copy has every file that it reads, not only the Python modules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READ = (
    "dags/.airflowignore",
    "tasks/report/comparison.html.j2",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "data_contracts").glob("*.yaml")),
)


@pytest.mark.filterwarnings("default")  # setuptools' own
def test_package_data_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    from setuptools import Distribution

    monkeypatch.chdir(ROOT)
    distribution = Distribution()
    distribution.parse_config_files(["pyproject.toml"])
    command = distribution.get_command_obj("build_py")
    command.ensure_finalized()
    packed = {
        os.path.normpath(Path(source) / name)
        for _, source, _, names in command.data_files
        for name in names
    }
    assert len(READ) > 4
    assert set(READ) <= packed
