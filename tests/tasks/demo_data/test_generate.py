"""Protects what the demo rests on: the same day again, a long tail, and a truth worth finding."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from tasks.demo_data import DemoSettings, generate, generate_day
from tasks.demo_data.command import demo_data_command
from tasks.errors import ConfigError, DataError
from tasks.lake import Lake

SMALL = DemoSettings(users=300, items=240, events_per_day=3_000, seed=3)
DATASETS = ("raw/interactions", "raw/items", "raw/users", "truth/items", "truth/users")


@pytest.fixture(scope="module")
def default_lake(tmp_path_factory) -> Lake:
    """Five days of the default settings."""
    lake = Lake(str(tmp_path_factory.mktemp("demo")))
    generate(DemoSettings(), lake, date(2026, 1, 1), 5)
    return lake


def column(lake: Lake, dataset: str, day: int, name: str) -> list[Any]:
    published = lake.partition(dataset, date(2026, 1, day))
    assert published is not None
    return lake.read_tables(published, [name])[name].to_pylist()


def test_a_day_depends_on_neither_start_nor_number_of_days(tmp_path):
    few, many = Lake(str(tmp_path / "few")), Lake(str(tmp_path / "many"))
    generate(SMALL, few, date(2026, 1, 3), 1)
    generate(SMALL, many, date(2026, 1, 1), 5)
    for dataset in DATASETS:
        one, other = (lake.partition(dataset, date(2026, 1, 3)) for lake in (few, many))
        assert one is not None
        assert other is not None
        assert one.digest == other.digest


def test_days_and_seeds_differ():
    first = generate_day(SMALL, date(2026, 1, 1)).interactions
    other_day = generate_day(SMALL, date(2026, 1, 2)).interactions
    other_seed = generate_day(SMALL.model_copy(update={"seed": 4}), date(2026, 1, 1)).interactions
    assert first["item_id"] != other_day["item_id"]
    assert first["item_id"] != other_seed["item_id"]


def test_the_schema_is_the_raw_contract():
    day = generate_day(SMALL, date(2026, 1, 1))
    types = {name: day.interactions.schema.field(name).type for name in ("user_id", "item_id")}
    assert types == {"user_id": pa.string(), "item_id": pa.string()}
    assert day.interactions.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert day.items.schema.field("tags").type == pa.list_(pa.string())
    assert day.items.column_names == ["item_id", "title", "category", "tags"]
    assert day.users.column_names == ["user_id", "country", "interests"]
    for table in (day.interactions, day.items, day.users):
        assert all(column.null_count == 0 for column in table.columns)


def test_events_are_exact_in_number_sorted_and_inside_the_day():
    for settings in (
        SMALL,
        SMALL.model_copy(update={"visitor_share": 0.0, "rare_item_share": 0.8}),
    ):
        events = generate_day(settings, date(2026, 1, 1)).interactions
        assert events.num_rows == 3_000
        times = events["timestamp"].to_pylist()
        assert times == sorted(times)
        assert {time.date() for time in times} == {date(2026, 1, 1)}
        assert times[0].tzinfo is not None
        assert times[-1] < datetime(2026, 1, 2, tzinfo=UTC)


def test_sessions_belong_to_one_user_and_run_forward():
    rows = generate_day(SMALL, date(2026, 1, 1)).interactions.to_pylist()
    owner: dict[int, str] = {}
    for row in rows:
        assert owner.setdefault(row["session"], row["user_id"]) == row["user_id"]
    sizes = Counter(row["session"] for row in rows)
    assert max(sizes.values()) > 1


def test_side_tables_have_each_id_once_and_know_the_newcomers():
    day = generate_day(SMALL, date(2026, 1, 1))
    for table, key in ((day.items, "item_id"), (day.users, "user_id")):
        ids = table[key].to_pylist()
        assert len(set(ids)) == len(ids)
        born_today = {i for i in day.interactions[key].to_pylist() if "20260101-" in i}
        assert born_today
        assert born_today <= set(ids)
    assert day.item_truth["item_id"].to_pylist() == day.items["item_id"].to_pylist()


def test_nine_ids_in_ten_occur_once_or_twice(tmp_path):
    lake = Lake(str(tmp_path))
    report = generate(DemoSettings(), lake, date(2026, 1, 1), 5)
    for name, share in (("user_id", report.rare_users), ("item_id", report.rare_items)):
        counts = Counter(
            value for day in range(1, 6) for value in column(lake, "raw/interactions", day, name)
        )
        rare = sum(count <= 2 for count in counts.values()) / len(counts)
        assert share == pytest.approx(rare)
        assert 0.87 <= rare <= 0.95
        # The other end of Zipf's law: one ID in a hundred has a fifth of the events or more.
        top = sum(count for _, count in counts.most_common(len(counts) // 100))
        assert top / counts.total() > 0.2
    assert report.events == 60_000


def test_every_day_brings_new_users_and_items(default_lake):
    for key in ("user_id", "item_id"):
        before = {
            value
            for day in range(1, 5)
            for value in column(default_lake, "raw/interactions", day, key)
        }
        today = set(column(default_lake, "raw/interactions", 5, key))
        assert 0.3 < len(today - before) / len(today) < 0.9


def test_popularity_drifts(default_lake):
    first, last = (
        Counter(
            value
            for value in column(default_lake, "raw/interactions", day, "item_id")
            if "-" not in value
        )
        for day in (1, 5)
    )
    changes = [last[item] / count for item, count in first.most_common(50)]
    assert min(changes) < 0.7
    assert max(changes) > 1.3


def test_tags_and_history_lead_to_the_truth(default_lake):
    """Knowing a user's cluster must beat popularity by far, or nothing could be learnt."""
    item_cluster: dict[str, int] = {}
    user_cluster: dict[str, int] = {}
    for day in range(1, 6):
        for kind, truth in (("item", item_cluster), ("user", user_cluster)):
            ids = column(default_lake, f"truth/{kind}s", day, f"{kind}_id")
            truth.update(
                zip(ids, column(default_lake, f"truth/{kind}s", day, "cluster"), strict=True)
            )
    train: Counter[str] = Counter()
    history: dict[str, list[str]] = defaultdict(list)
    for day in range(1, 5):
        pairs = (
            column(default_lake, "raw/interactions", day, key) for key in ("user_id", "item_id")
        )
        for user, item in zip(*pairs, strict=True):
            train[item] += 1
            history[user].append(item)
    pairs = (column(default_lake, "raw/interactions", 5, key) for key in ("user_id", "item_id"))
    targets: dict[str, set[str]] = defaultdict(set)
    for user, item in zip(*pairs, strict=True):
        if item not in history[user]:
            targets[user].add(item)
    popular = [item for item, _ in train.most_common(2_000) if item in item_cluster]
    shelf = defaultdict(list)
    for item in popular:
        shelf[item_cluster[item]].append(item)

    def recall(recommend) -> float:
        total = 0.0
        for user in judged:
            top = [item for item in recommend(user) if item not in history[user]][:20]
            total += len(targets[user] & set(top)) / len(targets[user])
        return total / len(judged)

    def by_history(user: str) -> list[str]:
        seen = Counter(item_cluster[item] for item in history[user] if item in item_cluster)
        return shelf[seen.most_common(1)[0][0]] if seen else popular

    judged = [user for user in targets if len(history[user]) >= 3 and user in user_cluster][:1_500]
    most_popular = recall(lambda _: popular)
    assert recall(lambda user: shelf[user_cluster[user]]) > 2.5 * most_popular
    assert recall(by_history) > 1.8 * most_popular
    # Two of three tags of an item, and most interests of a user, belong to the cluster.
    tags = zip(
        column(default_lake, "raw/items", 1, "item_id"),
        column(default_lake, "raw/items", 1, "tags"),
        strict=True,
    )
    from tasks.demo_data.themes import THEMES

    for item, words in list(tags)[:200]:
        assert set(words[:2]) <= set(THEMES[item_cluster[item]].tags)


def test_the_same_again_is_no_work_and_other_settings_are_refused(tmp_path):
    lake = Lake(str(tmp_path))
    first = generate(SMALL, lake, date(2026, 1, 1), 2)
    assert first.actions == {"published": 2}
    more = generate(SMALL, lake, date(2026, 1, 1), 3)
    assert more.actions == {"unchanged": 2, "published": 1}
    assert more.events == 9_000
    other = SMALL.model_copy(update={"seed": 4})
    with pytest.raises(DataError, match="another source"):
        generate(other, lake, date(2026, 1, 3), 2)
    assert lake.partition("raw/items", date(2026, 1, 4)) is None
    assert generate(other, lake, date(2026, 1, 3), 1, existing="replace").actions == {"replaced": 1}


def test_command_prints_the_share_and_explains_mistakes(tmp_path):
    app = typer.Typer()
    app.command()(demo_data_command)
    sizes = ["--users", "300", "--items", "240", "--events-per-day", "3000", "--days", "2"]
    result = CliRunner().invoke(app, ["--lake", str(tmp_path), *sizes, "--json"])
    assert json.loads(result.stdout)["events"] == 6_000
    result = CliRunner().invoke(app, ["--lake", str(tmp_path), *sizes])
    assert "occur once or twice" in result.output
    assert "2 unchanged" in result.output
    result = CliRunner().invoke(app, ["--lake", str(tmp_path), "--items", "12"])
    assert isinstance(result.exception, ConfigError)
    assert "taste clusters" in str(result.exception)
