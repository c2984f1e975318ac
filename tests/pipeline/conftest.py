"""A small synthetic log and a pipeline that trains on it in seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from tasks.config import PipelineConfig
from tasks.config_file import load_config
from tasks.demo_data import DemoSettings, generate
from tasks.lake import Lake
from tasks.version import PROJECT_ROOT

FIRST_DAY = date(2026, 1, 1)


@pytest.fixture
def small_pipeline(tmp_path: Path) -> Callable[..., PipelineConfig]:
    """Makes a pipeline with its own lake of four synthetic days and its own tracking store."""

    def make(name: str = "a", *overrides: str) -> PipelineConfig:
        lake = tmp_path / name / "lake"
        if not lake.exists():
            settings = DemoSettings(
                users=200,
                items=150,
                events_per_day=2500,
                joiners_per_day=10,
                releases_per_day=5,
                clusters=6,
            )
            generate(settings, Lake(str(lake)), start=FIRST_DAY, days=4)
        return load_config(
            PROJECT_ROOT / "conf" / "demo.yaml",
            [
                f"lake={lake}",
                f"tracking.uri=sqlite:///{tmp_path / name / 'mlflow.db'}",
                "tables.*.dim=8",
                "model.dim=8",
                "training.epochs=1",
                "training.batch_size=256",
                "training.threads=1",
                "evaluation.bootstrap_samples=200",
                *overrides,
            ],
        )

    return make


@pytest.fixture
def tree_digest() -> Callable[[Path], dict[str, str]]:
    """Digest of every file below a folder, by its relative path."""

    def digest(root: Path) -> dict[str, str]:
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }

    return digest
