"""Protects: the pointer in the lake names exactly the bundle that was promoted, and the MLflow
run ends whatever was decided."""

from __future__ import annotations

import json

import pytest

import tasks.publish
from models.bundle import read_bundle
from models.serving_settings import ServingSettings
from tasks.errors import ConfigError, LakeError
from tasks.evaluation.stored import read_comparison
from tasks.promotion import POINTER, read_pointer
from tasks.serving.bundles import (
    bundle_folder,
    find_served,
    served_bundle,
    served_path,
    trained_model,
)
from tasks.tracking import client
from tasks.tracking.runs import parent_of
from tests.tasks.small_runs import TwoDays, rerun


def test_the_pointer_names_the_promoted_bundle(two_days: TwoDays) -> None:
    spec = two_days.second
    lake = spec.lake()
    pointer = read_pointer(lake)
    candidate = trained_model(spec, "candidate")
    assert pointer is not None
    assert (pointer["run_id"], pointer["version"], pointer["day"]) == (
        spec.run_id,
        "2",
        "2026-01-04",
    )
    assert pointer["digest"] == candidate.digest
    assert lake.exists(f"{pointer['bundle']}/bundle.json")
    for name, digest in pointer["files"].items():
        assert lake.exists(f"{pointer['bundle']}/{name}")
        assert digest in {entry.digest for entry in candidate.manifest.files}


def test_servers_open_the_published_bundle(two_days: TwoDays) -> None:
    lake = two_days.second.lake()
    pointer = read_pointer(lake)
    assert pointer is not None
    served = served_bundle(lake, pointer)
    assert served.path == served_path(two_days.second.run_id)
    assert pointer["served_digest"] == served.digest
    assert served.manifest.inputs == {"bundle": pointer["digest"]}
    bundle = read_bundle(bundle_folder(lake, served))
    assert bundle.served is not None
    assert bundle.info["run_id"] == two_days.second.run_id
    # One made from another model of the same run is not taken for this one's.
    assert (
        find_served(lake, two_days.second.run_id, trained_model(two_days.first, "candidate"))
        is None
    )


def test_what_the_served_numbers_cost_is_in_mlflow(two_days: TwoDays) -> None:
    run = client(two_days.config).get_run(parent_of(two_days.second))
    assert run.data.metrics["serving/overlap"] == 1.0
    assert run.data.metrics["serving/bytes"] > 0


@pytest.mark.faults
def test_a_champion_that_loses_too_much_is_not_served(
    two_days: TwoDays, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = two_days.second
    before = spec.lake().read_text(POINTER)
    coarse = ServingSettings(tables="int4", item_vectors="int4", min_overlap=1.0)
    other = spec.model_copy(update={"config": spec.config.model_copy(update={"serving": coarse})})
    with pytest.raises(ConfigError, match="would be served too badly: only 0") as caught:
        rerun(other, "publish")
    assert caught.value.where == "serving"
    assert spec.lake().read_text(POINTER) == before


def test_facts_are_what_the_model_asset_carries(two_days: TwoDays) -> None:
    facts = dict(two_days.second.require("publish").facts)
    assert isinstance(facts.pop("links"), dict)
    served = facts.pop("served")
    assert (served["tables"], served["item_vectors"], served["overlap"]) == ("fp32", "fp32", 1.0)
    assert served["bytes"] > 0
    assert facts == {
        "promoted": True,
        "decision": "promoted",
        "run_id": two_days.second.run_id,
        "version": "2",
        "day": "2026-01-04",
        "pointer": POINTER,
    }


def test_the_mlflow_run_is_finished(two_days: TwoDays) -> None:
    mlflow = client(two_days.config)
    assert mlflow.get_run(parent_of(two_days.first)).info.status == "FINISHED"
    assert mlflow.get_run(parent_of(two_days.second)).info.status == "FINISHED"


def test_every_day_is_a_point_of_the_charts(two_days: TwoDays) -> None:
    mlflow = client(two_days.config)
    experiment = mlflow.get_experiment_by_name(two_days.config.tracking.experiment)
    assert experiment is not None
    (run,) = mlflow.search_runs([experiment.experiment_id], "tags.`tailtower.role` = 'all_days'")
    rerun(two_days.second, "publish")  # a repetition adds no point
    history = mlflow.get_metric_history(run.info.run_id, "recall_at_5/candidate")
    found = [(point.step, point.timestamp, point.value) for point in history]
    wanted = [
        # Days since 1970, and their first millisecond.
        (20456, 1767398400000, read_comparison(two_days.first)),
        (20457, 1767484800000, read_comparison(two_days.second)),
    ]
    assert found == [
        (step, time, comparison.candidate.metrics["recall_at_5"])
        for step, time, comparison in wanted
    ]
    names = run.data.metrics.keys()
    assert {
        "promoted",
        "recall_at_5/champion",
        "recall_at_5/popularity",
        "ndcg_at_5/candidate",
        "bytes/candidate",
        "vocabulary/item/rows",
        "vocabulary/item/covered_share",
    } <= names


def test_an_earlier_run_does_not_take_the_pointer_back(two_days: TwoDays) -> None:
    before = two_days.second.lake().read_text(POINTER)
    result = rerun(two_days.first, "publish")
    assert "pointer" not in result.facts
    assert two_days.second.lake().read_text(POINTER) == before


def test_nothing_is_published_for_a_rejected_model(
    two_days: TwoDays, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = two_days.first
    decided = spec.require("approve")
    rejected = decided.model_copy(
        update={"facts": {**decided.facts, "promoted": False, "decision": "rejected"}}
    )
    require = type(spec).require
    monkeypatch.setattr(
        type(spec), "require", lambda s, name: rejected if name == "approve" else require(s, name)
    )
    before = spec.lake().read_text(POINTER)
    result = rerun(spec, "publish")
    assert (result.facts["promoted"], result.facts["decision"]) == (False, "rejected")
    assert spec.lake().read_text(POINTER) == before


@pytest.mark.faults
def test_a_model_that_answers_otherwise_is_not_published(
    two_days: TwoDays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.publish, "same_answer", lambda *_lists: False)
    before = two_days.second.lake().read_text(POINTER)
    with pytest.raises(LakeError, match="does not answer as the evaluated one did for user"):
        rerun(two_days.second, "publish")
    assert two_days.second.lake().read_text(POINTER) == before
    assert json.loads(before)["version"] == "2"
