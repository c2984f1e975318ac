"""Protects the batch job: every user has the items that the server answers, a job that was stopped
goes on where it was, and the same job again does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import tasks.recommend_all
from tasks.errors import ConfigError
from tasks.gate import same_answer
from tasks.promotion import read_pointer
from tasks.recommend_all import FOLDER, Part, recommend_all, write_part
from tasks.serving.bundles import bundle_folder, served_bundle
from tasks.serving.by_id import RecommenderById
from tests.tasks.small_runs import TwoDays, make_config, make_two_days


def test_every_user_has_what_the_server_answers(two_days: TwoDays) -> None:
    lake = two_days.second.lake()
    pointer = read_pointer(lake)
    assert pointer is not None
    model = RecommenderById(bundle_folder(lake, served_bundle(lake, pointer)))
    published = recommend_all(two_days.config, k=6, part_users=10)
    table = lake.read_tables(published)
    assert table["user_id"].to_pylist() == model.user_ids.to_pylist()
    assert len(published.tables()) == -(-len(model.user_ids) // 10)
    for row in table.to_pylist():
        wanted = model.answer(row["user_id"], 6)
        assert same_answer(row["item_id"], row["score"], wanted.items, wanted.scores)
        assert row["origin"] == wanted.origin
    meta = published.manifest.meta
    assert (meta["users"], meta["k"], meta["version"]) == (len(table), 6, "2")
    assert meta["from_popularity"] == table["origin"].to_pylist().count("popularity")


def test_a_stopped_job_goes_on(
    tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = make_two_days(tmp_path / "lake", mlflow_uri)
    lake = days.second.lake()
    done: list[str] = []

    def until_the_third(part: Part) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        write_part(part)
        done.append(part.path)

    monkeypatch.setattr(tasks.recommend_all, "write_part", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        recommend_all(days.config, k=3, part_users=8)
    assert not lake.days(FOLDER)
    first = {path: Path(lake.abspath(path)).stat().st_mtime_ns for path in done}
    again: list[str] = []

    def rest(part: Part) -> None:
        again.append(part.path)
        write_part(part)

    monkeypatch.setattr(tasks.recommend_all, "write_part", rest)
    published = recommend_all(days.config, k=3, part_users=8)
    assert not set(again) & set(done)
    assert len(published.tables()) == len(done) + len(again)
    for path, written in first.items():
        kept = lake.abspath(published.file(path.rsplit("/", 1)[-1]))
        assert Path(kept).stat().st_mtime_ns == written
    assert not lake.exists(f"{FOLDER}-parts/dt=2026-01-04") or not lake.list_folders(
        f"{FOLDER}-parts/dt=2026-01-04"
    )
    monkeypatch.setattr(tasks.recommend_all, "write_part", until_the_third)
    assert recommend_all(days.config, k=3, part_users=8).reused


def test_without_a_champion_there_is_nothing_to_recommend(tmp_path: Path) -> None:
    config = make_config(tmp_path / "lake", f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(ConfigError, match="nothing is served yet"):
        recommend_all(config)
