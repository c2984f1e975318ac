"""Protects: what a person sees is what serving answers, and says where it comes from."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tasks.errors import ConfigError
from tasks.evaluation.stored import SAMPLES
from tasks.recommend import recommend, show
from tests.tasks.small_runs import TwoDays, make_config


def _vocabulary(two_days: TwoDays, table: str) -> set[str]:
    spec = two_days.second
    published = spec.output("vocabulary", table)
    return set(spec.lake().read_table(published.file("part-0.parquet")).column("id").to_pylist())


def test_a_known_user_gets_what_was_evaluated(two_days: TwoDays) -> None:
    spec = two_days.second
    evaluation = spec.output("evaluate", "evaluation")
    samples = spec.lake().read_table(evaluation.file(SAMPLES)).to_pylist()
    sample = next(s for s in samples if s["model"] == "candidate" and s["user_id"] < "u30")
    found = recommend(two_days.config, user=sample["user_id"], k=5)
    assert found.model == "champion, version 2 of 2026-01-04"
    assert (found.origin, found.known_user) == ("user", True)
    assert [item.score for item in found.items] == pytest.approx(sample["scores"], abs=1e-5)


def test_each_id_says_whether_it_owns_a_row(two_days: TwoDays) -> None:
    owners = _vocabulary(two_days, "item")
    found = recommend(two_days.config, user="u01", k=30)
    assert {item.embedding for item in found.items} == {"own row", "shared bucket"}
    for item in found.items:
        assert (item.embedding == "own row") == (item.item_id in owners)
    assert (found.embedding == "own row") == ("u01" in _vocabulary(two_days, "user"))


def test_titles_come_from_the_items_table(two_days: TwoDays) -> None:
    for item in recommend(two_days.config, user="u01", k=40).items:
        expected = f"Title {item.item_id}" if str(item.item_id) < "i40" else None
        assert item.title == expected


def test_an_unknown_user_gets_the_most_popular_items(two_days: TwoDays) -> None:
    found = recommend(two_days.config, user="nobody", k=5)
    assert (found.origin, found.known_user) == ("popularity", False)
    counts = [item.train_count for item in found.items]
    assert counts == sorted(counts, reverse=True)
    assert [item.score for item in found.items] == counts


def test_a_history_replaces_the_user_and_is_not_recommended(two_days: TwoDays) -> None:
    found = recommend(two_days.config, user="nobody", history=["i03", "gone"], k=5)
    assert found.origin == "history"
    assert found.unknown_history == ("gone",)
    assert "i03" not in {item.item_id for item in found.items}
    alone = recommend(two_days.config, user=None, history=["i03"], k=5)
    assert alone.embedding == "not used"
    with_seen = recommend(two_days.config, user=None, history=["i03"], k=60, exclude_seen=False)
    assert "i03" in {item.item_id for item in with_seen.items}


def test_a_runs_model_can_be_asked_instead(two_days: TwoDays) -> None:
    found = recommend(two_days.config, user="u01", k=5, run="2026-01-03:popularity")
    assert found.model.endswith(":popularity")
    assert found.origin == "popularity"


def test_clear_errors(two_days: TwoDays, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nobody to recommend to"):
        recommend(two_days.config, user=None)
    with pytest.raises(ConfigError, match="no champion yet"):
        recommend(make_config(tmp_path / "empty", "sqlite:///unused"), user="u01")


def test_the_table_fits_a_terminal(two_days: TwoDays) -> None:
    out = io.StringIO()
    show(recommend(two_days.config, user="u01", k=3), Console(file=out, width=80))
    text = out.getvalue()
    assert "champion, version 2 of 2026-01-04" in text
    assert all(len(line) <= 80 for line in text.splitlines())
