"""Data that brings its own split and has no times: against a loop over the rows. No test row
reaches counts, vocabulary, corpus counts, histories or training, and no example sees its own item.
"""

import random

import pyarrow as pa
import pytest

from tasks.errors import DataError
from tasks.longtail import build_examples
from tasks.longtail.count_plan import first_test_day
from tasks.resolve_run import _split
from tests.tasks.longtail.raw_lake import (
    at,
    day_of,
    events,
    read_output,
    run_steps,
    spec_of,
    write_partition,
)
from tests.tasks.longtail.world import by_user_id, outputs

LENGTH = 4


def rows_with_split(seed=3, rows=400):
    """Users and items with a split. Some pairs repeat, a few across roles."""
    rng = random.Random(seed)
    return [
        (
            f"u{int(rng.paretovariate(0.9)) % 30}",
            int(rng.paretovariate(0.7)) % 50,
            "test" if rng.random() < 0.25 else "train",
        )
        for _ in range(rows)
    ]


def write_rows(lake, rows, files=2):
    parts = {}
    for n in range(files):
        part = list(enumerate(rows))[n::files]
        # Whatever the column says, it means nothing.
        table = events([(user, item, at(1, 37 * k % 86_400)) for k, (user, item, _) in part])
        roles = pa.array([role for _, (*_, role) in part])
        parts[f"{n}.parquet"] = table.append_column("part", roles)
    write_partition(lake, "interactions", 1, parts)


def split_spec(lake, **data):
    data = {"split": "part", "history": "others", **data}
    spec = spec_of(lake, 1, data=data)
    return spec.model_copy(update={"train_days": (day_of(1),), "test_days": (day_of(1),)})


def of_role(rows, role):
    return [(user, item) for user, item, of in rows if of == role]


def test_only_train_rows_are_learned_from_and_no_example_sees_its_own_item(tmp_path):
    rows = rows_with_split()
    write_rows(tmp_path, rows)
    spec = split_spec(tmp_path)
    run_steps(spec)
    tables = outputs(spec)
    train, test = of_role(rows, "train"), of_role(rows, "test")
    liked = {user: {item for name, item in train if name == user} for user, _ in train}

    counts = read_output(spec, "count", f"item/{day_of(1)}").to_pydict()
    expected = {item: sum(1 for _, i in train if i == item) for _, item in train}
    assert dict(zip(counts["id"], counts["count"], strict=True)) == expected
    corpus = tables["items"].to_pydict()
    assert dict(zip(corpus["item_id"], corpus["train_count"], strict=True)) == expected

    examples = by_user_id(tables, "train")
    ids = corpus["item_id"]
    assert sorted((row["user"], ids[row["item"]]) for row in examples) == sorted(train)
    for row in examples:
        history = [ids[item] for item in row["history"]]
        assert ids[row["item"]] not in history
        assert set(history) <= liked[row["user"]]
        assert len(set(history)) == len(history) == min(LENGTH, len(liked[row["user"]]) - 1)

    found = by_user_id(tables, "test")
    assert {row["user_id"] for row in found} == {user for user, _ in test}
    for row in found:
        own = liked.get(row["user_id"], set())
        wanted = {item for user, item in test if user == row["user_id"]}
        assert {ids[item] for item in row["seen"]} == own
        assert {ids[item] for item in row["targets"]} == (wanted & set(expected)) - own
        history = [ids[item] for item in row["history"]]
        assert set(history) <= own
        assert len(set(history)) == len(history) == min(LENGTH, len(own))


def test_parts_and_hot_users_change_no_row(tmp_path, monkeypatch):
    rows = rows_with_split()
    found = []
    for number in range(2):
        lake = tmp_path / str(number)
        write_rows(lake, rows, files=1 + number)
        spec = split_spec(lake)
        run_steps(spec)
        meta = spec.output("examples", "examples").manifest.meta
        found.append((by_user_id(outputs(spec), "train"), by_user_id(outputs(spec), "test")))
        # The second time users are spread over parts, and the busiest are cut into slices.
        monkeypatch.setattr(build_examples, "PART_BYTES", 40 * build_examples._ROW_BYTES)
    assert meta["parts"] > 1
    assert found[0] == found[1]


def test_a_row_of_no_role_is_refused_by_name(tmp_path):
    write_rows(tmp_path, [("a", 1, "train"), ("b", 2, "valid")])
    with pytest.raises(DataError, match="'valid'"):
        run_steps(split_spec(tmp_path))


def test_a_missing_column_is_named(tmp_path):
    write_partition(tmp_path, "interactions", 1, events([("a", 1, at(1))]))
    with pytest.raises(DataError, match="part"):
        run_steps(split_spec(tmp_path))


def test_a_split_of_the_days_does_not_share_counts_with_one_of_the_rows(tmp_path):
    write_rows(tmp_path, rows_with_split())
    run_steps(split_spec(tmp_path), "await_partition", "count")
    by_row = read_output(split_spec(tmp_path), "count", f"item/{day_of(1)}")
    write_partition(tmp_path, "interactions", 2, events([("u1", 1, at(2))]))
    plain = spec_of(tmp_path, 2)
    run_steps(plain, "await_partition", "count")
    by_day = read_output(plain, "count", f"item/{day_of(1)}")
    total = sum(by_day["count"].to_pylist())
    assert total == 400
    assert sum(by_row["count"].to_pylist()) < total


def test_every_day_of_the_window_is_trained_on_and_tested_on(tmp_path):
    config = split_spec(tmp_path, window_days=3, allow_gaps=True).config
    present = [day_of(n) for n in (1, 2, 3, 5)]
    days = (day_of(3), day_of(5))
    assert _split(config, day_of(5), present) == (days, days)
    spec = split_spec(tmp_path)
    assert first_test_day(spec) == day_of(2)
