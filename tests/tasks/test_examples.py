"""The examples step: against a loop over the log; no leak; the same whoever does the work."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.errors import ConfigError, DataError
from tasks.longtail import build_examples, cluster
from tests.tasks.longtail.examples_reference import reference, tfidf
from tests.tasks.longtail.raw_lake import (
    MODEL,
    TABLES,
    US,
    at,
    day_of,
    events,
    run_steps,
    spec_of,
    write_partition,
)
from tests.tasks.longtail.world import (
    RICH_TABLES,
    World,
    by_user_id,
    codes_of,
    digests,
    items_table,
    outputs,
    users_table,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A world whose examples are made."""
    made = World(tmp_path_factory.mktemp("world"))
    spec = made.spec()
    run_steps(spec)
    return made, spec, outputs(spec)


def test_corpus_order_titles_counts_and_codes(world):
    made, spec, tables = world
    corpus = tables["items"].to_pydict()
    expected = reference(made.train, made.test, [*range(50), 100, 101], 4)
    assert corpus["item_id"] == expected.item_ids
    assert corpus["train_count"] == [expected.train_count[i] for i in expected.item_ids]
    # The newest row up to the test day wins: item 3 of day 3, items 4 and 101 of day 4.
    shift = {3: 1, 5: 1, 4: 2, 101: 2}
    tag, colour, item = (codes_of(spec, name) for name in ("tag", "colour", "item"))
    for row, i in enumerate(corpus["item_id"]):
        known = i < 50 or i in (100, 101)
        source = items_table([i], shift.get(i, 0)).to_pylist()[0] if known else {}
        assert corpus["title"][row] == source.get("title")
        assert corpus["iid"][row] == item(i)
        assert corpus["colour"][row] == colour(source.get("colour"))
        tags = source.get("tags") or []
        assert corpus["tags"][row] == [code for name in tags for code in tag(name)]


def test_train_rows_are_the_log_with_histories(world):
    made, _, tables = world
    corpus = tables["items"]["item_id"].to_pylist()
    expected = reference(made.train, made.test, [*range(50), 100, 101], 4)
    train = tables["train"].to_pydict()
    users = tables["users"].to_pydict()
    names = users["user_id"]
    assert users["user"] == list(range(len(names)))
    assert sorted(names) == names == sorted({user for user, _, _ in made.train})
    found = sorted(
        (names[user], corpus[item], time, tuple(corpus[i] for i in past))
        for user, item, time, past in zip(
            train["user"], train["item"], train["timestamp"], train["history"], strict=True
        )
    )
    assert found == sorted(
        (user, item, round(time.timestamp() * US), past)
        for user, item, time, past in expected.train
    )


def test_event_columns_stay_with_their_event(world):
    made, spec, tables = world
    device, user, country = (codes_of(spec, name) for name in ("device", "user", "country"))
    corpus = tables["items"]["item_id"].to_pylist()
    names = tables["users"]["user_id"].to_pylist()
    train = tables["train"].to_pydict()
    found = sorted(
        (names[u], corpus[i], t, w, tuple(d), tuple(k), tuple(c))
        for u, i, t, w, d, k, c in zip(
            *(
                train[name]
                for name in ("user", "item", "timestamp", "weight", "device", "uid", "country")
            ),
            strict=True,
        )
    )
    known = {f"u{n}" for n in range(30)}
    expected = []
    for number in (1, 2, 3):
        for n, (name, item, time) in enumerate(made.days[number]):
            # Attributes as of the end of the training days: u1's row of day 4 is not known.
            place = f"k{len(name) % 3}" if name in known else None
            codes = (device(made.device[number][n]), user(name), country(place))
            micros = round(time.timestamp() * US)
            expected.append((name, item, micros, 1.0 + n % 3, *(tuple(c) for c in codes)))
    assert found == sorted(expected)


def test_test_users_and_train_users_have_what_is_known_before_the_test_day(world):
    made, spec, tables = world
    corpus = tables["items"]["item_id"].to_pylist()
    expected = reference(made.train, made.test, [*range(50), 100, 101], 4)
    index = {name: n for n, name in enumerate(tables["users"]["user_id"].to_pylist())}
    test = tables["test"].to_pylist()
    assert [row["user_id"] for row in test] == sorted(expected.targets)
    user, country, device = (codes_of(spec, name) for name in ("user", "country", "device"))
    known = {f"u{n}" for n in range(30)}
    last_device: dict[str, list[Any]] = {}
    for number in (1, 2, 3):
        for (name, item, time), kind in zip(made.days[number], made.device[number], strict=True):
            last_device.setdefault(name, []).append((time, item, kind))
    for row in test:
        name = row["user_id"]
        assert row["user"] == index.get(name, -1)
        assert {corpus[i] for i in row["targets"]} == expected.targets[name]
        assert len(row["targets"]) == len(expected.targets[name])
        assert [corpus[i] for i in row["history"]] == expected.last.get(name, [])
        assert {corpus[i] for i in row["seen"]} == expected.seen.get(name, set())
        assert row["train_count"] == sum(1 for u, _, _ in made.train if u == name)
        assert row["uid"] == user(name)
        late = name in ("u1", "u39")
        place = f"k{(len(name) + late) % 3}" if name in known or late else None
        assert row["country"] == country(place)
        instants = sorted(last_device.get(name, []), key=lambda event: event[:2])
        newest = {tuple(device(k)) for *at_, k in instants if tuple(at_) == instants[-1][:2]}
        assert tuple(row["device"]) in (newest or {tuple(device(None))})
    for row in tables["users"].to_pylist():
        name = row["user_id"]
        assert [corpus[i] for i in row["history"]] == expected.last[name]
        assert {corpus[i] for i in row["seen"]} == expected.seen[name]
        assert row["uid"] == user(name)
        assert row["country"] == country(f"k{len(name) % 3}" if name in known else None)


def test_negatives_have_the_probabilities_of_their_definition(world):
    made, _, tables = world
    corpus = tables["items"].to_pydict()
    counts = np.array(corpus["train_count"], dtype=np.float64)
    expected = {
        "uniform": np.ones(len(counts)) / len(counts),
        "popularity": counts**0.75 / (counts**0.75).sum(),
        "tfidf": np.array(tfidf(made.train, corpus["item_id"])),
    }
    assert (counts == 0).any()
    for name, probability in expected.items():
        table = tables[name].to_pydict()
        prob, alias = np.array(table["prob"]), np.array(table["alias"])
        found = prob.copy()
        np.add.at(found, alias, 1 - prob)
        np.testing.assert_allclose(found / len(found), probability, atol=1e-7)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(table["log_q"], np.log(probability), rtol=1e-5)


def test_column_types_and_the_manifest(world):
    made, spec, tables = world
    train = tables["train"].schema
    codes = pa.list_(pa.int32())
    assert [(field.name, field.type) for field in train if field.name != "device"] == [
        ("user", pa.int64()),
        ("item", pa.int32()),
        ("history", codes),
        ("timestamp", pa.int64()),
        ("weight", pa.float32()),
        ("uid", codes),
        ("country", codes),
    ]
    assert tables["items"].schema.field("item_id").type == pa.int64()
    assert tables["items"].schema.field("title").type == pa.string()
    for name in ("seen", "targets", "history"):
        assert tables["test"].schema.field(name).type.value_type == pa.int32()
    assert tables["test"].schema.field("user_id").type == pa.string()
    meta = spec.output("examples", "examples").manifest.meta
    users = {user for user, _, _ in made.train}
    items = {item for _, item, _ in made.train}
    assert meta["num_users"] == len(users)
    assert meta["num_items"] == tables["items"].num_rows
    assert meta["train_rows"] == 450
    assert meta["test_users"] == tables["test"].num_rows
    assert meta["table_hashes"]["user"] == 2
    assert meta["table_rows"]["item"] == spec.output("vocabulary", "item").manifest.meta["rows"]
    unseen = sum(item not in items for _, item, _ in made.test) / len(made.test)
    assert meta["unseen_item_share"] == pytest.approx(unseen, abs=1e-6)
    new = sum(user not in users for user, _, _ in made.test) / len(made.test)
    assert meta["unseen_user_share"] == pytest.approx(new, abs=1e-6)


def test_shards_are_equal_to_within_a_row_and_mixed(world):
    _, spec, tables = world
    published = spec.output("examples", "examples")
    sizes = [e.rows for e in published.manifest.files if "/train/" in e.path]
    assert len(sizes) == 8
    assert max(sizes) - min(sizes) <= 1
    users = tables["train"]["user"].to_numpy()
    # Unshuffled rows lie user by user: neighbours would nearly always be the same user.
    assert (users[1:] == users[:-1]).mean() < 0.5


def train_side(spec):
    """Bytes of everything that training reads."""
    return {
        name: digest
        for name, digest in digests(spec).items()
        if name.split("/")[0] in ("train", "users", "negatives", "items")
    }


def test_planted_test_day_events_reach_only_the_targets(tmp_path):
    plain, planted = World(tmp_path / "plain"), World(tmp_path / "planted")
    extra = [
        ("u0", 2, at(4, 1)),  # known to both sides
        ("u0", 999, at(4, 2)),  # an item that only the test day has
        ("intruder", 3, at(4, 3)),  # a user that only the test day has
    ]
    day = [*planted.days[4], *extra * 40]
    planted.write(4, day, ["web"] * len(day), np.ones(len(day), np.float32), 1)
    specs = [world.spec() for world in (plain, planted)]
    for spec in specs:
        run_steps(spec)
    assert train_side(specs[0]) == train_side(specs[1])
    assert digests(specs[0])["test/part-0.parquet"] != digests(specs[1])["test/part-0.parquet"]
    tables = outputs(specs[1])
    assert 999 not in tables["items"]["item_id"].to_pylist()
    intruder = next(row for row in tables["test"].to_pylist() if row["user_id"] == "intruder")
    assert (intruder["user"], intruder["history"], intruder["seen"]) == (-1, [], [])
    assert [tables["items"]["item_id"][i].as_py() for i in intruder["targets"]] == [3]


def test_a_training_event_of_the_test_day_is_caught(tmp_path):
    for number in (1, 2, 3):
        write_partition(tmp_path, "interactions", number, events([("u", "i", at(number))]))
    leak = events([("u", "j", at(3, 5))])
    write_partition(tmp_path, "interactions", 2, {"late.parquet": leak})
    with pytest.raises(DataError, match=r"1 training event.* on a test day") as caught:
        run_steps(spec_of(tmp_path, 3))
    assert "dt=2026-03-02/late.parquet" in str(caught.value)


def test_files_their_order_and_parts_change_no_row(tmp_path, monkeypatch):
    one, many = World(tmp_path / "one", files=1), World(tmp_path / "many", files=3)
    first, second = one.spec(), many.spec()
    run_steps(first)
    run_steps(second)
    assert digests(first) == digests(second)
    monkeypatch.setattr(build_examples, "PART_BYTES", 25_000)
    third = World(tmp_path / "parts").spec()
    run_steps(third)
    assert third.output("examples", "examples").manifest.meta["parts"] == 4
    whole, split = outputs(first), outputs(third)
    for name in ("items", "tfidf", "uniform", "popularity"):
        assert whole[name].equals(split[name])

    for name in ("train", "test", "users"):
        assert by_user_id(whole, name) == by_user_id(split, name)


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_this_process_and_two_dask_workers_write_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(build_examples, "PART_BYTES", 25_000)
    found = []
    for workers in (0, 2):
        spec = World(tmp_path / str(workers)).spec(dask={"workers": max(workers, 1)})
        run_steps(spec, "await_partition", "count", "vocabulary")
        monkeypatch.setattr(cluster, "SMALL_BYTES", 0 if workers else 1 << 30)
        run_steps(spec, "examples")
        monkeypatch.setattr(cluster, "SMALL_BYTES", 1 << 30)
        found.append(digests(spec))
    assert found[0] == found[1]


def test_the_same_inputs_again_are_no_work(tmp_path):
    for number in (1, 2):
        write_partition(tmp_path, "interactions", number, events([("u", "i", at(number))]))
    spec = spec_of(tmp_path, 2)
    first = run_steps(spec)
    assert run_steps(spec, "examples").digests == first.digests
    # A setting that does not shape the examples leaves them alone; one that does, does not.
    rate = spec_of(tmp_path, 2, training={"optimizer": {"learning_rate": 0.5}})
    assert run_steps(rate).outputs["examples"] == first.outputs["examples"]
    seed = spec_of(tmp_path, 2, training={"seed": 1})
    assert run_steps(seed).outputs["examples"] != first.outputs["examples"]


def test_events_without_user_item_or_time_are_dropped_and_counted(tmp_path):
    table = pa.table(
        {
            "user_id": ["u", None, "u", "u"],
            "item_id": ["i", "i", None, "i"],
            "timestamp": pa.array([at(1), at(1), at(1), None], pa.timestamp("us", tz="UTC")),
        }
    )
    write_partition(tmp_path, "interactions", 1, table)
    write_partition(tmp_path, "interactions", 2, events([("u", "i", at(2))]))
    spec = spec_of(tmp_path, 2)
    assert run_steps(spec).facts["dropped_rows"] == 3
    tables = outputs(spec)
    assert tables["train"].num_rows == 1
    # One item, touched by every user: its idf is zero, and frequency alone is left.
    assert tables["tfidf"]["log_q"].to_pylist() == [0.0]
    # The user has seen the only item: a test user without a target.
    assert tables["test"]["targets"].to_pylist() == [[]]


def test_missing_attribute_column_names_column_and_data_set(tmp_path):
    World(tmp_path)
    model = {
        "user": MODEL["user"],
        "item": {"features": [*MODEL["item"]["features"], {"name": "brand", "table": "colour"}]},
    }
    tables = {**TABLES, "colour": RICH_TABLES["colour"]}
    with pytest.raises(DataError, match="no column 'brand'") as caught:
        run_steps(spec_of(tmp_path, 4, tables=tables, model=model))
    assert "raw/items" in str(caught.value)


def test_a_list_column_in_an_id_feature_is_refused(tmp_path):
    World(tmp_path)
    model = {
        "user": MODEL["user"],
        "item": {"features": [*MODEL["item"]["features"], {"name": "tags", "table": "tag"}]},
    }
    tables = {**TABLES, "tag": RICH_TABLES["tag"]}
    with pytest.raises(DataError, match="'tags' holds lists, but feature 'tags' is of kind id"):
        run_steps(spec_of(tmp_path, 4, tables=tables, model=model))


def test_other_id_types_in_a_side_table_are_refused(tmp_path):
    for number in (1, 2):
        write_partition(tmp_path, "interactions", number, events([("u", "7", at(number))]))
    write_partition(tmp_path, "items", 1, pa.table({"item_id": [7], "title": ["Seven"]}))
    with pytest.raises(DataError, match="String in raw/interactions and Int64 in raw/items"):
        run_steps(spec_of(tmp_path, 2))


def test_the_user_tower_may_not_read_the_item(tmp_path):
    for number in (1, 2):
        write_partition(tmp_path, "interactions", number, events([("u", "i", at(number))]))
    features = [*MODEL["user"]["features"], {"name": "leak", "table": "item"}]
    model = {"user": {"features": features}, "item": MODEL["item"]}
    with pytest.raises(ConfigError, match="'leak' shows the user tower the item"):
        run_steps(spec_of(tmp_path, 2, model=model))


@pytest.fixture
def shared_data():
    """The folder of real data sets beside the repository."""
    default = Path(__file__).parents[2] / ".." / "shared" / "data"
    folder = Path(os.environ.get("TAILTOWER_SHARED_DATA", default))
    if not (folder / "movietweetings").is_dir():
        pytest.skip("no real data: set TAILTOWER_SHARED_DATA")
    return folder


def test_real_log_movietweetings(tmp_path, shared_data):
    """Real IDs with leading zeros and real ties, over four weeks of 2013."""
    source = shared_data / "movietweetings" / "10K" / "ratings.dat"
    rows = [line.split("::") for line in source.read_text().splitlines()]
    first = min(int(row[3]) for row in rows) // 86400
    days: dict[int, list[Any]] = {}
    for user, movie, _, second in rows:
        # The lake's first day stands for the log's first day.
        shifted = int(second) - first * 86400
        days.setdefault(shifted // 86400 + 1, []).append((int(user), movie, at(1, shifted)))
    for number, day in days.items():
        if number <= 8:
            write_partition(tmp_path, "interactions", number, events(day))
    spec = spec_of(tmp_path, 8, first=min(days))
    run_steps(spec)
    train = [row for number in range(1, 8) for row in days[number]]
    expected = reference(train, days[8], [], 4)
    tables = outputs(spec)
    corpus = tables["items"]["item_id"].to_pylist()
    assert corpus == expected.item_ids
    assert any(item.startswith("0") for item in corpus)
    names = tables["users"]["user_id"].to_pylist()
    table = tables["train"].to_pydict()
    found = sorted(
        (names[user], corpus[item], tuple(corpus[i] for i in past))
        for user, item, past in zip(table["user"], table["item"], table["history"], strict=True)
    )
    assert found == sorted((user, item, past) for user, item, _, past in expected.train)
    targets = {
        row["user_id"]: {corpus[i] for i in row["targets"]} for row in tables["test"].to_pylist()
    }
    assert targets == expected.targets


def test_two_test_days_are_tested_together_and_neither_is_trained_on(tmp_path):
    for number in (1, 2, 3):
        day = events([("u", f"i{number}", at(number)), ("v", "i1", at(number, 9))])
        write_partition(tmp_path, "interactions", number, day)
    write_partition(tmp_path, "items", 1, pa.table({"item_id": ["i1", "i2", "i3"]}))
    spec = spec_of(tmp_path, 3).model_copy(
        update={"train_days": (day_of(1),), "test_days": (day_of(2), day_of(3))}
    )
    run_steps(spec)
    tables = outputs(spec)
    assert tables["train"].num_rows == 2
    assert tables["items"]["train_count"].to_pylist() == [2, 0, 0]
    corpus = tables["items"]["item_id"].to_pylist()
    u, v = tables["test"].to_pylist()
    assert {corpus[i] for i in u["targets"]} == {"i2", "i3"}
    assert v["targets"] == []
    path = spec.require("vocabulary").outputs["item"]
    assert path.startswith(f"vocabulary/item/dt={day_of(2)}/")


def test_a_file_without_any_id_has_no_type_of_its_own(tmp_path):
    """A writer that saw only nulls leaves Arrow's null type behind."""
    lost = pa.table(
        {
            "user_id": pa.nulls(2),
            "item_id": pa.nulls(2),
            "timestamp": pa.nulls(2),
            "device": pa.nulls(2),
        }
    )
    known = events([("u", "i", at(1)), ("u", "j", at(1, 5))], device=pa.array(["web", None]))
    late = events([("u", "i", at(2))], device=pa.nulls(1))
    write_partition(tmp_path, "interactions", 1, {"a.parquet": lost, "b.parquet": known})
    write_partition(tmp_path, "interactions", 2, late)
    features = [*MODEL["user"]["features"], {"name": "device", "table": "device"}]
    device = {"source": "interactions.device", "vocabulary": {"min_count": 1, "tail_buckets": 2}}
    spec = spec_of(
        tmp_path,
        2,
        tables={**TABLES, "device": device},
        model={"user": {"features": features}, "item": MODEL["item"]},
    )
    assert run_steps(spec).facts["dropped_rows"] == 2
    assert sorted(outputs(spec)["train"]["device"].to_pylist()) == [[0], [3]]


@pytest.mark.parametrize("everywhere", [False, True], ids=["in_one_file", "in_all_files"])
def test_a_side_table_column_without_any_value_fits_every_type(tmp_path, everywhere):
    """Arrow's null type, alone or in lists, means the same as nulls of the column's type."""
    made = []
    for typed in (True, False):
        lake = tmp_path / str(typed)
        world = World(lake)
        text = pa.string() if typed else pa.null()
        nothing = {
            "title": pa.nulls(3, text),
            "tags": pa.array([[], None, [None]], pa.list_(text)),
            "colour": pa.nulls(3, text),
        }
        empty_items = pa.table({"item_id": [3, 4, 5], **nothing})
        empty_users = pa.table({"user_id": ["u1", "u2", "u3"], "country": pa.nulls(3, text)})
        for number in (1, 3, 4) if everywhere else (3,):
            write_partition(lake, "items", number, empty_items)
        for number in (1, 4) if everywhere else (1,):
            others = {} if everywhere else {"b.parquet": users_table(["u4", "u5"])}
            write_partition(lake, "users", number, {"a.parquet": empty_users, **others})
        spec = world.spec()
        run_steps(spec)
        made.append(digests(spec))
    assert made[0] == made[1]


def test_a_side_table_that_names_nobody_is_as_good_as_none(tmp_path):
    nobody = pa.table({"item_id": pa.nulls(2), "title": pa.nulls(2)})
    found = []
    for name in ("nobody", "absent"):
        lake = tmp_path / name
        for number in (1, 2):
            write_partition(lake, "interactions", number, events([("u", "7", at(number))]))
        if name == "nobody":
            write_partition(lake, "items", 1, nobody)
        spec = spec_of(lake, 2)
        run_steps(spec)
        found.append(digests(spec))
    assert found[0] == found[1]


def test_a_file_is_split_in_stretches_without_a_trace(tmp_path, monkeypatch):
    whole = World(tmp_path / "whole").spec()
    run_steps(whole)
    monkeypatch.setattr(build_examples, "SPLIT_ROWS", 7)
    pieces = World(tmp_path / "pieces").spec()
    run_steps(pieces)
    assert digests(whole) == digests(pieces)
