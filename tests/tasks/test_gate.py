"""Protects: one registered version for each run, aliases that never lose a model, and no
promotion over a champion that the candidate was not compared with."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import TrackingError
from tasks.gate import same_answer
from tasks.run_spec import RunSpec
from tasks.serving.bundles import trained_model
from tasks.tracking import client, current_champion, registry
from tasks.tracking.registry import by_alias, set_alias
from tasks.tracking.runs import parent_of
from tests.tasks.small_runs import (
    ANYTHING_PASSES,
    TwoDays,
    fake_training,
    make_config,
    rerun,
    run_data_steps,
    run_steps,
    write_raw_days,
)


def _compared_run(lake: Path, uri: str, day: date, seed: int = 0, **settings: Any) -> RunSpec:
    if not lake.exists():
        write_raw_days(lake, 5)
    spec = run_data_steps(make_config(lake, uri, **(ANYTHING_PASSES | settings)), day)
    fake_training(spec, seed=seed)
    run_steps(spec, "evaluate", "compare")
    return spec


def _versions(spec: RunSpec) -> list[str]:
    found = client(spec.config).search_model_versions("name = 'tiny'")
    return sorted(str(version.version) for version in found)


def test_the_second_day_moves_the_champion_and_keeps_the_first(two_days: TwoDays) -> None:
    config = two_days.config
    champion, previous = current_champion(config), by_alias(config, "previous")
    assert champion is not None
    assert previous is not None
    assert (champion.version, champion.run_id) == ("2", two_days.second.run_id)
    assert (previous.version, previous.run_id) == ("1", two_days.first.run_id)
    assert champion.day == date(2026, 1, 4)
    assert by_alias(config, "challenger") is None
    assert two_days.second.champion == previous.model_copy()


def test_a_repeated_gate_registers_and_moves_nothing(two_days: TwoDays) -> None:
    spec = two_days.second
    before = spec.require("gate")
    again = rerun(spec, "gate")
    assert again.facts == before.facts
    assert again.outputs == before.outputs
    assert _versions(spec) == ["1", "2"]
    assert by_alias(spec.config, "previous").version == "1"  # type: ignore[union-attr]


def test_the_decision_is_written_where_people_look(two_days: TwoDays) -> None:
    spec = two_days.second
    reason = spec.require("gate").facts["reason"]
    decision = spec.output("gate", "decision")
    record = json.loads(spec.lake().read_text(decision.file("gate.json")))
    assert record["reason"] == reason
    assert record["outcome"] == "promoted"
    assert record["champion"]["version"] == "1"
    assert reason.replace("'", "&#39;") in spec.lake().read_text(decision.file("report.html"))
    mlflow = client(spec.config)
    run = mlflow.get_run(parent_of(spec))
    assert run.data.tags["tailtower.decision"] == "promoted"
    assert run.data.tags["tailtower.reason"] == reason
    assert reason in run.data.tags["mlflow.note.content"]
    names = {artifact.path for artifact in mlflow.list_artifacts(parent_of(spec))}
    assert {"gate.json", "report.html", "comparison.json", "figures"} <= names
    version = mlflow.get_model_version("tiny", "2")
    assert version.tags["tailtower.decision"] == "promoted"
    assert version.tags["tailtower.bundle_digest"] == trained_model(spec, "candidate").digest
    assert "recall_at_5" in str(version.description)


def test_a_rejected_candidate_is_registered_as_challenger(tmp_path: Path, mlflow_uri: str) -> None:
    lake = tmp_path / "lake"
    first = _compared_run(lake, mlflow_uri, date(2026, 1, 3))
    run_steps(first, "gate")
    second = _compared_run(lake, mlflow_uri, date(2026, 1, 4), seed=1, gate__margin=0.99)
    facts = run_steps(second, "gate")["gate"].facts
    assert facts["decision"] == "rejected"
    assert not facts["promoted"]
    assert "does not clear +0.9900" in facts["reason"]
    assert current_champion(second.config).run_id == first.run_id  # type: ignore[union-attr]
    assert by_alias(second.config, "challenger").version == facts["version"]  # type: ignore[union-attr]
    assert by_alias(second.config, "previous") is None


def test_ask_proposes_without_moving(tmp_path: Path, mlflow_uri: str) -> None:
    spec = _compared_run(tmp_path / "lake", mlflow_uri, date(2026, 1, 3), gate__promote="ask")
    facts = run_steps(spec, "gate")["gate"].facts
    assert facts["decision"] == "proposed"
    assert current_champion(spec.config) is None
    assert by_alias(spec.config, "challenger").version == "1"  # type: ignore[union-attr]


def test_a_champion_that_changed_meanwhile_stops_the_gate(tmp_path: Path, mlflow_uri: str) -> None:
    lake = tmp_path / "lake"
    slow = _compared_run(lake, mlflow_uri, date(2026, 1, 3))
    fast = _compared_run(lake, mlflow_uri, date(2026, 1, 4), seed=1)
    run_steps(fast, "gate")
    with pytest.raises(TrackingError, match="it was none, now it is version 1") as caught:
        run_steps(slow, "gate")
    assert caught.value.transient
    assert _versions(slow) == ["1"]  # nothing was registered before the check


def test_a_gate_that_stopped_between_two_aliases_is_taken_up(
    tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    run_steps(_compared_run(lake, mlflow_uri, date(2026, 1, 3)), "gate")
    spec = _compared_run(lake, mlflow_uri, date(2026, 1, 4), seed=1)

    def dies_at_champion(config: Any, alias: str, version: str) -> None:
        if alias == "champion":
            raise KeyboardInterrupt
        set_alias(config, alias, version)

    monkeypatch.setattr(registry, "set_alias", dies_at_champion)
    with pytest.raises(KeyboardInterrupt):
        run_steps(spec, "gate")
    monkeypatch.undo()
    assert run_steps(spec, "gate")["gate"].facts["version"] == "2"
    assert _versions(spec) == ["1", "2"]
    assert current_champion(spec.config).version == "2"  # type: ignore[union-attr]
    assert by_alias(spec.config, "previous").version == "1"  # type: ignore[union-attr]


@pytest.mark.faults
def test_a_registered_model_that_answers_otherwise_is_rejected(
    tmp_path: Path, mlflow_uri: str
) -> None:
    """The samples of the evaluation are replaced by another model's."""
    import pyarrow.parquet as pq

    spec = _compared_run(tmp_path / "lake", mlflow_uri, date(2026, 1, 3))
    evaluation = spec.output("evaluate", "evaluation")
    path = spec.lake().local_path(evaluation.file("samples.parquet"))
    table = pq.read_table(path)
    reversed_items = [items[::-1] for items in table.column("items").to_pylist()]
    changed = table.set_column(2, "items", [reversed_items])
    pq.write_table(changed.cast(table.schema), path)
    facts = run_steps(spec, "gate")["gate"].facts
    assert facts["decision"] == "rejected"
    assert "otherwise than it was evaluated" in facts["reason"]
    assert current_champion(spec.config) is None


@pytest.mark.faults
def test_a_champion_whose_bundle_left_the_lake_is_read_from_the_registry(
    tmp_path: Path, mlflow_uri: str
) -> None:
    lake = tmp_path / "lake"
    first = _compared_run(lake, mlflow_uri, date(2026, 1, 3))
    run_steps(first, "gate")
    shutil.rmtree(lake / "models")
    second = _compared_run(lake, mlflow_uri, date(2026, 1, 4), seed=0)
    measured = second.output("evaluate", "evaluation").manifest.meta["models"]["champion"]
    assert measured["run_id"] == first.run_id
    assert measured["parameters"] > 0


@pytest.mark.parametrize(
    ("items", "scores", "same"),
    [
        (["a", "b", "c"], [3.0, 2.0, 1.0], True),
        (["a", "b", "c"], [3.00001, 2.0, 1.0], True),
        (["a", "c", "b"], [3.0, 2.0, 1.0], False),
        (["a", "b"], [3.0, 2.0], False),
        (["a", "b", "d"], [3.0, 2.0, 0.5], False),
        (["a", "b", "c"], [3.1, 2.0, 1.0], False),
        (["a", "b", "d"], [3.0, 2.0, 1.0], True),  # d ties with c at the last place
        (["x", "b", "c"], [3.0, 2.0, 1.0], False),  # x is nowhere in the wanted list
    ],
)
def test_same_answer(items: list[str], scores: list[float], same: bool) -> None:
    assert same_answer(items, scores, ["a", "b", "c"], [3.0, 2.0, 1.0]) is same


def test_ties_may_change_places() -> None:
    assert same_answer(["b", "a"], [1.0, 1.0], ["a", "b"], [1.0, 1.0])
    assert same_answer([], [], [], [])
