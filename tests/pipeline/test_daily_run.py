"""The whole pipeline on a small synthetic log: trained, gated, repeatable, incremental."""

from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from tasks.lake import Lake
from tasks.longtail.id_hash import tail_buckets
from tasks.resolve_run import resolve
from tasks.run_command import run_all
from tasks.serving.bundles import bundle_folder
from tasks.steps import STEPS, execute
from tasks.tracking import client
from tasks.tracking.runs import get_run

pytestmark = pytest.mark.integration


def _run_until(config, day, last_step):
    spec = resolve(config, day)
    for step in STEPS[: [step.name for step in STEPS].index(last_step) + 1]:
        execute(spec, step.name)
    return spec


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_days_from_raw_logs_to_a_champion_and_back_again(small_pipeline, tree_digest):
    # Five steps teach nothing: this is about the way, and every candidate is let through.
    config = small_pipeline(
        "a", "gate.against=[champion]", "gate.margin=-1", "gate.min_coverage_ratio=0"
    )
    first = resolve(config, date(2026, 1, 3))
    run_all(first)
    decision = first.require("gate").facts
    assert decision["promoted"], decision
    assert first.require("publish").facts["version"] == "1"

    second = resolve(config, date(2026, 1, 4))
    assert second.champion is not None
    assert second.champion.run_id == first.run_id
    run_all(second)
    models = {role: second.require(f"train.{role}").facts for role in config.roles}
    assert models["candidate"]["parameters"] < models["traditional"]["parameters"]

    # A finished day, run again: nothing is worked on, and no byte of the lake changes.
    before = tree_digest(Path(config.lake))
    for day in (date(2026, 1, 3), date(2026, 1, 4)):
        run_all(resolve(config, day))
    assert tree_digest(Path(config.lake)) == before


def _vocabulary(spec):
    lake = Lake(spec.config.lake)
    return {
        table: lake.read_table(spec.output("vocabulary", table).file("part-0.parquet"))
        for table in spec.config.tables
    }


@pytest.mark.timeout(300)
def test_vocabulary_of_a_day_does_not_depend_on_which_days_were_run(small_pipeline):
    """Days one by one, and the last day alone, which builds the days before it by itself."""
    policy = ("tables.item.vocabulary.min_count=6", "tables.user.vocabulary.min_count=6")
    step_by_step = small_pipeline("one-by-one", *policy)
    for day in (2, 3, 4):
        one_by_one = _vocabulary(_run_until(step_by_step, date(2026, 1, day), "vocabulary"))
    at_once = _vocabulary(
        _run_until(small_pipeline("at-once", *policy), date(2026, 1, 4), "vocabulary")
    )
    assert one_by_one.keys() == at_once.keys()
    for table, rows in one_by_one.items():
        assert rows.num_rows > 0
        assert rows.equals(at_once[table]), table


def _tables(spec):
    """Each table's weights, and the row of every ID that owns one."""
    folder = bundle_folder(spec.lake(), spec.output("train.candidate", "model"))
    return {
        name: (
            load_file(folder / f"tables/{name}.safetensors")["weight"],
            dict(zip(*(rows.column(c).to_pylist() for c in ("id", "row")), strict=True)),
        )
        for name, rows in _vocabulary(spec).items()
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_second_day_continues_from_the_first(small_pipeline):
    """At a rate of nothing the second day's rows are the first day's, wherever IDs have moved."""
    config = small_pipeline(
        "warm",
        "baselines=[popularity]",
        "gate.against=[champion]",
        "tables.item.vocabulary.min_count=20",
        "training.warm_start.model=latest",
        "training.validation.users=20",
        "training.log_every=1",
    )
    quiet = config.training.optimizer.model_copy(update={"learning_rate": 1e-12})
    still = config.model_copy(
        update={"training": config.training.model_copy(update={"optimizer": quiet})}
    )
    first = _run_until(config, date(2026, 1, 3), "examples")
    execute(first, "train", "candidate")
    second = _run_until(still, date(2026, 1, 4), "examples")
    execute(second, "train", "candidate")
    assert second.warm_start.run_id == first.run_id
    facts = second.require("train.candidate").facts
    assert facts["warm_start"]["run_id"] == first.run_id
    assert facts["warm_start"]["optimizer_state"]
    assert facts["optimizer_state_bytes"] > 0
    before, after = _tables(first), _tables(second)
    promoted = 0
    for name, (weight, rows) in after.items():
        old_weight, old_rows = before[name]
        policy = config.tables[name].vocabulary
        numbers = facts["warm_start"]["tables"][name]
        assert numbers["kept"] == len(set(rows) & set(old_rows))
        for identity, row in rows.items():
            if identity in old_rows:
                expected = old_weight[old_rows[identity]]
            else:
                promoted += 1
                (buckets,) = tail_buckets(
                    pl.Series([identity]),
                    buckets=policy.tail_buckets,
                    hashes=1,
                    seed=policy.seed,
                )
                expected = old_weight[int(buckets[0])]
            assert torch.allclose(weight[row], expected, atol=1e-8), (name, identity)
    assert promoted > 0
    # Only the day that the first model has not seen was trained on, once.
    examples = second.output("examples", "examples")
    lake = second.lake()
    midnight = int(datetime(2026, 1, 3, tzinfo=UTC).timestamp() * 1e6)
    new = sum(
        int((lake.read_table(file).column("timestamp").to_numpy() >= midnight).sum())
        for file in examples.files()
        if "/train/" in file
    )
    run = get_run(config, second.require("train.candidate").facts["mlflow_run_id"])
    assert run.data.tags["tailtower.warm_start"] == first.run_id
    assert run.data.metrics["warm_start/item/kept_rows"] > 0
    assert "train/validation_recall_at_20" in run.data.metrics
    history = client(config).get_metric_history(run.info.run_id, "train/loss")
    batch = config.training.batch_size * config.training.accumulate
    held_out = min(20, new // 100)
    assert new - held_out <= len(history) * batch < new - held_out + batch
