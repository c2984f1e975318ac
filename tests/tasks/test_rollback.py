"""Protects: a rollback serves the earlier version everywhere, says why, and does not swing back
to a model that was taken away itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.cli import main
from tasks.errors import ConfigError, LakeError
from tasks.promotion import read_pointer
from tasks.recommend import recommend
from tasks.rollback import ROLLED_BACK, roll_back
from tasks.tracking import client, current_champion
from tasks.tracking.registry import by_alias
from tests.tasks.small_runs import TwoDays, make_config, make_two_days


@pytest.fixture
def served(tmp_path: Path, mlflow_uri: str) -> TwoDays:
    """Two days that were both promoted, for changing."""
    return make_two_days(tmp_path / "lake", mlflow_uri)


def test_the_earlier_version_is_served_and_the_reason_kept(served: TwoDays, tmp_path: Path) -> None:
    config = served.config
    (tmp_path / "tiny.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    words = ["rollback", "--reason", "odd items", "--by", "ada"]
    assert main([*words, "--config", str(tmp_path / "tiny.yaml")]) == 0
    champion, previous = current_champion(config), by_alias(config, "previous")
    assert champion is not None
    assert previous is not None
    assert (champion.version, previous.version) == ("1", "2")
    pointer = read_pointer(served.first.lake())
    assert pointer is not None
    assert (pointer["version"], pointer["run_id"]) == ("1", served.first.run_id)
    # What people are shown comes from the earlier bundle.
    assert recommend(config, user="u01").model == "champion, version 1 of 2026-01-03"
    assert (
        client(config)
        .get_model_version("tiny", "2")
        .tags[ROLLED_BACK]
        .endswith("by ada: odd items")
    )
    with pytest.raises(ConfigError, match=r"version 2, was taken back itself: .* odd items"):
        roll_back(config, reason="again", by="bob")
    assert roll_back(config, reason="was fine", by="bob", version="2").now.version == "2"
    pointer = read_pointer(served.first.lake())
    assert pointer is not None
    assert pointer["run_id"] == served.second.run_id


@pytest.mark.faults
def test_a_version_whose_bundle_is_gone_changes_nothing(served: TwoDays) -> None:
    before = served.first.lake().read_text("models/champion.json")
    target = by_alias(served.config, "previous")
    assert target is not None
    served.first.lake().delete(target.bundle)
    with pytest.raises(LakeError):
        roll_back(served.config, reason="odd", by="ada")
    assert current_champion(served.config).version == "2"  # type: ignore[union-attr]
    assert served.first.lake().read_text("models/champion.json") == before


@pytest.mark.parametrize(
    ("version", "message"),
    [("2", "is served already"), ("99", "has no version 99"), ("x", "has no version x")],
)
def test_a_wrong_target_is_named(two_days: TwoDays, version: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        roll_back(two_days.config, reason="odd", by="ada", version=version)


def test_nothing_can_be_taken_back_before_the_first_promotion(
    tmp_path: Path, mlflow_uri: str
) -> None:
    config = make_config(tmp_path / "lake", mlflow_uri)
    with pytest.raises(ConfigError, match="nothing is served yet"):
        roll_back(config, reason="odd", by="ada")
