"""Protects the settings: schedulers read them without torch, and wrong ones are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from models.config import (
    EmbeddingTableSettings,
    FeatureSettings,
    ModelSettings,
    TowerSettings,
    TrainJob,
)
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


def test_gradient_sharding_is_another_word_for_columns() -> None:
    table = EmbeddingTableSettings.model_validate({"dim": 64, "gradient_sharding": True})
    assert table == EmbeddingTableSettings(dim=64, sharding="column_wise")
    assert EmbeddingTableSettings.model_validate({"gradient_sharding": False}).sharding == "auto"
    again = {"gradient_sharding": True, "sharding": "column_wise", "column_width": 8}
    assert EmbeddingTableSettings.model_validate(again).part_width == 8
    assert EmbeddingTableSettings.model_validate(table.model_dump()) == table


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"gradient_sharding": True, "sharding": "row_wise"},
            "true contradicts sharding: row_wise",
        ),
        ({"gradient_sharding": False, "sharding": "column_wise"}, "false contradicts"),
        ({"gradient_sharding": "maybe"}, "gradient_sharding"),
        ({"column_width": 8}, "is for sharding: column_wise"),
        ({"sharding": "column_wise", "dim": 64, "column_width": 12}, "12 does not divide dim: 64"),
        ({"sharding": "column_wise", "column_width": 6}, "multiple of 4"),
    ],
)
def test_columns_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        EmbeddingTableSettings.model_validate(settings)


@pytest.mark.parametrize(
    ("dim", "width"), [(4, 4), (8, 4), (12, 4), (16, 4), (20, 4), (64, 16), (96, 24), (1024, 256)]
)
def test_parts_of_a_row_are_about_a_quarter(dim: int, width: int) -> None:
    assert EmbeddingTableSettings(dim=dim, sharding="column_wise").part_width == width
    assert EmbeddingTableSettings(dim=dim).part_width == dim
