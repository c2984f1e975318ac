"""Protects the settings: schedulers read them without torch, and wrong ones are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from models.config import FeatureSettings, ModelSettings, TowerSettings, TrainJob
from tests.models.worlds import make_job, make_world


def test_settings_need_no_torch() -> None:
    heavy = "{'torch', 'torchrec', 'numpy', 'pyarrow', 'pandas'}"
    code = f"import models.config, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]"


def test_history_on_the_item_side_is_refused() -> None:
    feature = FeatureSettings(name="recent", table="item", kind="history")
    tower = TowerSettings(features=(feature,))
    with pytest.raises(ValidationError, match="belongs to the user tower"):
        ModelSettings(user=tower, item=tower)


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    job = make_job(make_world(tmp_path / "w", num_users=3, num_items=4), tmp_path)
    assert TrainJob.model_validate_json(job.model_dump_json()) == job
