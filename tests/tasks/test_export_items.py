"""Protects: an index built from the exported vectors ranks as serving does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.cli import main
from tasks.errors import ConfigError
from tasks.export_items import export_items
from tasks.serving.bundles import bundle_folder, trained_model
from tasks.serving.by_id import RecommenderById
from tests.tasks.small_runs import TwoDays, make_config


def test_inner_products_of_the_export_are_the_scores_of_serving(
    two_days: TwoDays, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export-items", "--run-spec", two_days.second.uri]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])["facts"]
    assert (facts["version"], facts["day"]) == ("2", "2026-01-04")
    table = pq.read_table(facts["file"])
    vectors = np.array(table.column("vector").to_pylist(), dtype=np.float32)
    assert vectors.shape[1] == facts["dim"]
    lake = two_days.second.lake()
    model = RecommenderById(bundle_folder(lake, trained_model(two_days.second, "candidate")))
    wanted = model.answer("u01", 5, exclude_seen=False)
    row = model.row_of("u01")
    assert row is not None
    users = model.recommender.inputs(model.encode(model.user_ids.slice(row, 1)))
    user = model.recommender.user_vectors(users).numpy()[0]
    scores = vectors @ user
    best = np.argsort(-scores)[:5]
    assert [table.column("item_id")[int(n)].as_py() for n in best] == wanted.items
    assert scores[best] == pytest.approx(wanted.scores, abs=1e-5)
    titles = dict(
        zip(table.column("item_id").to_pylist(), table.column("title").to_pylist(), strict=True)
    )
    assert titles["i00"] == "Title i00"


def test_a_second_export_writes_nothing(two_days: TwoDays) -> None:
    first = export_items(two_days.config)
    assert export_items(two_days.config).files() == first.files()


def test_before_the_first_promotion_there_is_nothing_to_export(tmp_path: Path) -> None:
    config = make_config(tmp_path / "lake", f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(ConfigError, match="nothing is served yet"):
        export_items(config)
