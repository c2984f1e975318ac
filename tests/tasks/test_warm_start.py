"""Protects the choice of the model that a run continues from: never one that has seen a test day,
always with all its rows accounted for, and changes that cannot be continued told at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks import warm_start
from tasks.config import PipelineConfig
from tasks.errors import ConfigError, UpstreamError
from tasks.resolve_run import resolve
from tasks.run_spec import RunSpec
from tests.tasks.small_runs import (
    ANYTHING_PASSES,
    fake_training,
    make_config,
    run_data_steps,
    run_steps,
    write_raw_days,
)

SECOND, THIRD, FOURTH = date(2026, 1, 3), date(2026, 1, 4), date(2026, 1, 5)
Maker = Callable[..., PipelineConfig]


@pytest.fixture
def config(tmp_path: Path, mlflow_uri: str) -> Maker:
    """Makes settings of one lake with six days and one tracking store."""
    write_raw_days(tmp_path / "lake", 6)

    def make(warm: dict[str, Any], **changes: Any) -> PipelineConfig:
        settings = {**ANYTHING_PASSES, "training": {"warm_start": warm}, **changes}
        return make_config(tmp_path / "lake", mlflow_uri, **settings)

    return make


def _run(config: PipelineConfig, day: date, *, promote: bool) -> RunSpec:
    spec = run_data_steps(config, day)
    fake_training(spec, seed=day.day)
    if promote:
        run_steps(spec, "evaluate", "compare", "gate", "approve", "publish")
    return spec


def test_the_champion_or_the_latest_candidate_is_continued(config: Maker) -> None:
    champion, latest = config({"model": "champion"}), config({"model": "latest"})
    first = _run(champion, SECOND, promote=True)
    assert first.warm_start is None
    second = _run(champion, THIRD, promote=False)
    assert second.warm_start is not None
    assert second.warm_start.run_id == first.run_id
    assert second.warm_start.version == "1"
    assert second.warm_start.trained_until == first.train_days[-1]
    # The first day that the earlier model was tested on is new to it.
    midnight = datetime.combine(SECOND, datetime.min.time(), UTC)
    assert warm_start.since_us(second) == int(midnight.timestamp() * 1e6)
    third = resolve(champion, FOURTH)
    assert third.warm_start is not None
    assert third.warm_start.run_id == first.run_id, "the second one was not promoted"
    other = resolve(latest, FOURTH)
    assert other.warm_start is not None
    assert other.warm_start.run_id == second.run_id
    assert other.warm_start.version is None
    assert resolve(config({"model": "none"}), FOURTH).warm_start is None
    again = resolve(config({"model": "latest", "examples": "window"}), FOURTH)
    assert again.warm_start is not None
    assert warm_start.since_us(again) is None


def test_a_model_that_has_seen_a_test_day_is_not_continued(
    config: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config({"model": "champion"})
    _run(settings, FOURTH, promote=True)
    assert resolve(settings, SECOND).warm_start is None
    assert "has seen a test day" in capsys.readouterr().err
    assert resolve(config({"model": "latest"}), SECOND).warm_start is None
    # The same day again, with other settings: its model has nothing left to learn.
    other = config({"model": "champion"}, evaluation__bootstrap_samples=300)
    assert resolve(other, FOURTH).warm_start is None
    assert "has seen all days" in capsys.readouterr().err


def test_every_row_is_accounted_for(config: Maker, tmp_path: Path) -> None:
    settings = config({"model": "latest"})
    first = _run(settings, SECOND, promote=False)
    second = run_data_steps(settings, FOURTH)
    with warm_start.earlier_bundle(second) as bundle:
        assert bundle is not None
        start, facts = warm_start.prepare(second, bundle, tmp_path / "moves")
    assert facts["run_id"] == first.run_id
    assert facts["optimizer_state"] is True
    assert start.state is not None
    assert set(start.moves) == set(settings.tables)
    some_promoted = 0
    for table, numbers in facts["tables"].items():
        old, new = (spec.output("vocabulary", table) for spec in (first, second))
        tables = (second.lake().read_table(v.file("part-0.parquet")) for v in (old, new))
        ids, rows = ({line["id"]: line["row"] for line in t.to_pylist()} for t in tables)
        assert numbers["kept"] == len(set(ids) & set(rows))
        assert numbers["promoted"] == len(set(rows) - set(ids))
        assert numbers["demoted"] == len(set(ids) - set(rows))
        some_promoted += numbers["promoted"]
        lines = pq.read_table(start.moves[table]).to_pylist()
        buckets = new.manifest.meta["tail_buckets"]
        own = {line["new_row"] for line in lines if line["new_row"] > buckets}
        assert own == set(rows.values())
        for line in lines:
            if line["new_row"] > buckets and line["old_row"] > buckets:
                assert next(i for i, r in rows.items() if r == line["new_row"]) == next(
                    i for i, r in ids.items() if r == line["old_row"]
                )
    assert some_promoted > 0


def _prepare(spec: RunSpec, folder: Path) -> dict[str, Any]:
    with warm_start.earlier_bundle(spec) as bundle:
        assert bundle is not None
        return warm_start.prepare(spec, bundle, folder)[1]


def test_changes_are_refused_in_one_message(config: Maker, tmp_path: Path) -> None:
    _run(config({"model": "latest"}), SECOND, promote=False)
    body = config({"model": "latest"}).model_dump(mode="json")
    tables = {name: dict(table) for name, table in body["tables"].items()}
    tables["item"]["dim"] = 12
    tables["user"]["vocabulary"] = {**tables["user"]["vocabulary"], "seed": 5}
    model = {**body["model"], "dim": 12}

    def spec(warm: dict[str, Any]) -> RunSpec:
        settings = config({"model": "latest", **warm}, tables=tables, model=model)
        return run_data_steps(settings, FOURTH)

    with pytest.raises(ConfigError) as refused:
        _prepare(spec({}), tmp_path / "a")
    message = str(refused.value)
    assert "table item: dim was 8 and is 12" in message
    assert "table user: vocabulary.seed was 17 and is 5" in message
    assert "model.dim was 8 and is 12" in message
    assert "reinitialise: [item, user]" in message
    assert "reinitialise_towers: true" in message
    with pytest.raises(ConfigError, match=r"towers: model\.dim"):
        _prepare(spec({"reinitialise": ["item", "user"]}), tmp_path / "b")
    facts = _prepare(
        spec({"reinitialise": ["item", "user"], "reinitialise_towers": True}), tmp_path / "c"
    )
    assert facts["tables"]["item"] == facts["tables"]["user"] == "starts anew"
    assert facts["tables"]["country"]["kept"] > 0
    with pytest.raises(ConfigError, match="there is no table 'itme'"):
        _prepare(spec({"reinitialise": ["itme"]}), tmp_path / "d")


def test_new_and_removed_tables_are_named(config: Maker, tmp_path: Path) -> None:
    settings = config({"model": "latest"})
    _run(settings, SECOND, promote=False)
    body = settings.model_dump(mode="json")
    tables = {n: t for n, t in body["tables"].items() if n != "interest"}
    tables["nation"] = tables["country"]
    features = [f for f in body["model"]["user"]["features"] if f["name"] != "interests"]
    features[-1] = {"name": "country", "table": "nation"}
    tables.pop("country")
    model = {**body["model"], "user": {"features": features, "hidden": []}}
    changed = config({"model": "latest"}, tables=tables, model=model)
    facts = _prepare(run_data_steps(changed, FOURTH), tmp_path / "moves")
    assert facts["tables"]["nation"] == "new"
    assert facts["removed"] == ["country", "interest"]


def test_a_model_that_is_gone_is_told(config: Maker, tmp_path: Path) -> None:
    settings = config({"model": "latest"})
    first = _run(settings, SECOND, promote=False)
    second = run_data_steps(settings, FOURTH)
    first.lake().delete(first.require("train.candidate").outputs["model"])
    with pytest.raises(UpstreamError, match="is gone"):
        _prepare(second, tmp_path / "moves")
