"""The whole pipeline on a small synthetic log: trained, gated, repeatable, incremental."""

from datetime import date
from pathlib import Path

import pytest

from tasks.lake import Lake
from tasks.resolve_run import resolve
from tasks.run_command import run_all
from tasks.steps import STEPS, execute

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
