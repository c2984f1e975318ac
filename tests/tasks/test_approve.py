"""Protects: a proposed model is served only after a yes, a no leaves everything as it was, and
the answer stands where people look for it."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tasks.approve import give_answer, read_answer
from tasks.cli import main
from tasks.errors import ConfigError, TrackingError
from tasks.promotion import read_pointer
from tasks.run_spec import RunSpec
from tasks.steps import execute
from tasks.tracking import client, current_champion
from tasks.tracking.registry import by_alias
from tasks.tracking.runs import parent_of
from tests.tasks.small_runs import (
    ANYTHING_PASSES,
    fake_training,
    make_config,
    run_data_steps,
    run_steps,
    write_raw_days,
)


def _gated(lake: Path, uri: str, day: int, promote: str = "ask") -> RunSpec:
    if not lake.exists():
        write_raw_days(lake, 5)
    settings: dict[str, Any] = {**ANYTHING_PASSES, "gate__promote": promote}
    spec = run_data_steps(make_config(lake, uri, **settings), date(2026, 1, day))
    fake_training(spec, seed=day)
    run_steps(spec, "evaluate", "compare", "gate")
    return spec


@pytest.fixture
def proposed(tmp_path: Path, mlflow_uri: str) -> RunSpec:
    """A run whose model waits for an answer."""
    return _gated(tmp_path / "lake", mlflow_uri, 3)


def test_without_an_answer_nothing_is_served(proposed: RunSpec) -> None:
    done = run_steps(proposed, "approve", "publish")
    assert done["approve"].facts["decision"] == done["publish"].facts["decision"] == "proposed"
    assert current_champion(proposed.config) is None
    assert read_pointer(proposed.lake()) is None


def test_a_yes_makes_the_model_champion(proposed: RunSpec) -> None:
    run_steps(proposed, "approve", "publish")  # nobody had answered yet
    give_answer(proposed, approved=True, by="ada", reason="looks right")
    done = run_steps(proposed, "approve", "publish")
    assert done["approve"].facts["promoted"]
    assert done["approve"].facts["reason"].startswith("approved by ada: looks right (")
    assert done["publish"].facts["pointer"]
    champion = current_champion(proposed.config)
    assert champion is not None
    assert champion.run_id == proposed.run_id
    assert by_alias(proposed.config, "challenger") is None
    mlflow = client(proposed.config)
    tags = mlflow.get_run(parent_of(proposed)).data.tags
    assert tags["tailtower.decision"] == "promoted"
    assert tags["mlflow.note.content"].startswith("**approved by ada: looks right**")
    assert mlflow.get_model_version("tiny", "1").tags["tailtower.decision"] == "promoted"
    names = {artifact.path for artifact in mlflow.list_artifacts(parent_of(proposed))}
    assert "approval.json" in names


def test_a_no_leaves_the_champion(tmp_path: Path, mlflow_uri: str) -> None:
    first = _gated(tmp_path / "lake", mlflow_uri, 3, promote="auto")
    run_steps(first, "approve", "publish")
    second = _gated(tmp_path / "lake", mlflow_uri, 4)
    give_answer(second, approved=False, by="ada", reason="too few users")
    done = run_steps(second, "approve", "publish")
    assert (done["publish"].facts["promoted"], done["publish"].facts["decision"]) == (
        False,
        "rejected",
    )
    assert current_champion(second.config).run_id == first.run_id  # type: ignore[union-attr]
    pointer = read_pointer(second.lake())
    assert pointer is not None
    assert pointer["run_id"] == first.run_id


def test_an_answer_is_given_once(proposed: RunSpec) -> None:
    first = give_answer(proposed, approved=True, by="ada")
    assert give_answer(proposed, approved=True, by="bob") == first
    with pytest.raises(ConfigError, match="has an answer: approved by ada"):
        give_answer(proposed, approved=False, by="bob")
    assert read_answer(proposed) == first


def test_a_model_that_was_not_proposed_takes_no_answer(tmp_path: Path, mlflow_uri: str) -> None:
    spec = _gated(tmp_path / "lake", mlflow_uri, 3, promote="auto")
    with pytest.raises(ConfigError, match="waits for no answer: it was promoted"):
        give_answer(spec, approved=True, by="ada")


def test_a_yes_after_another_promotion_promotes_nothing(tmp_path: Path, mlflow_uri: str) -> None:
    """The candidate was never compared with the model that is served now."""
    waiting = _gated(tmp_path / "lake", mlflow_uri, 3)
    other = _gated(tmp_path / "lake", mlflow_uri, 4, promote="auto")
    give_answer(waiting, approved=True, by="ada")
    with pytest.raises(TrackingError, match="the champion changed"):
        execute(waiting, "approve")
    assert current_champion(waiting.config).run_id == other.run_id  # type: ignore[union-attr]


def test_the_command_answers_and_publishes(
    proposed: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["answer", proposed.uri, "approve", "--by", "ada", "--reason", "fine"]) == 0
    assert "approved by ada: fine; it is served now" in " ".join(capsys.readouterr().err.split())
    pointer = read_pointer(proposed.lake())
    assert pointer is not None
    assert pointer["run_id"] == proposed.run_id
    assert json.loads(proposed.lake().read_text(f"{proposed.folder}/answer.json"))["by"] == "ada"
