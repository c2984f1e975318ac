"""Neighbours of items: against dense matrices; the same in many parts; nothing of the test days."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.longtail import build_examples, neighbours
from tests.tasks.longtail.raw_lake import at, events, read_output, run_steps, spec_of
from tests.tasks.longtail.raw_lake import write_partition as write
from tests.tasks.longtail.world import RICH_MODEL, RICH_TABLES, World, outputs

COUNT = 3
FEATURES = [
    {"name": "neighbours", "table": "item", "kind": "neighbours", "max_length": COUNT},
    {"name": "nearest", "table": "item", "kind": "neighbours", "max_length": 1},
]
WITHOUT: dict[str, Any] = RICH_MODEL
MODEL = {
    "user": WITHOUT["user"],
    "item": {"features": [*WITHOUT["item"]["features"], *FEATURES]},
}


def expected(rows: Any, item_ids: list[Any], owners: set[Any], longest: int = 200) -> list[Any]:
    """Neighbours by dense counts of the users that two items share."""
    place = {item: n for n, item in enumerate(item_ids)}
    users = sorted({user for user, _, _ in rows})
    taken = np.zeros((len(users), len(item_ids)))
    for user, item, _ in rows:
        taken[users.index(user), place[item]] = 1
    count = taken.sum(0)
    for one in taken:
        one[np.flatnonzero(one)[:-longest]] = 0
    together = taken.T @ taken
    found = []
    for i in range(len(item_ids)):
        scored = [
            (-(together[i, j] - 0.5) / np.sqrt(count[i] * count[j]), j)
            for j in range(len(item_ids))
            if j != i and together[i, j] and item_ids[j] in owners
        ]
        found.append([j for _, j in sorted(scored)[:COUNT]])
    return found


def owners_of(spec: Any) -> set[Any]:
    return set(read_output(spec, "vocabulary", "item")["id"].to_pylist())


@pytest.mark.parametrize(("parts", "pairs", "longest"), [(False, 1 << 24, 200), (True, 40, 4)])
def test_against_dense_matrices(tmp_path, monkeypatch, parts, pairs, longest):
    world = World(tmp_path)
    monkeypatch.setattr(neighbours, "BLOCK_PAIRS", pairs)
    monkeypatch.setattr(neighbours, "LONGEST", longest)
    if parts:
        monkeypatch.setattr(build_examples, "PART_BYTES", 25_000)
    spec = spec_of(tmp_path, 4, tables=RICH_TABLES, model=MODEL)
    run_steps(spec)
    items = outputs(spec)["items"].to_pydict()
    owners = owners_of(spec)
    assert 3 < len(owners) < len(items["item_id"]) / 2
    wanted = expected(world.train, items["item_id"], owners, longest)
    assert items["neighbours"] == wanted
    assert items["nearest"] == [some[:1] for some in wanted]
    assert any(some == [] for some in wanted)
    assert any(len(some) == COUNT for some in wanted)
    if parts:
        assert spec.output("examples", "examples").manifest.meta["parts"] > 1
    assert not {"train_users", "owns_row"} & set(items)


def test_test_days_have_no_say(tmp_path):
    rng = random.Random(5)
    train = [(f"u{rng.randrange(8)}", rng.randrange(9), at(1, n)) for n in range(60)]
    found = []
    for name, seed in (("one", 1), ("other", 2)):
        later = random.Random(seed)
        test = [(f"u{later.randrange(8)}", later.randrange(9), at(2, n)) for n in range(60)]
        write(tmp_path / name, "interactions", 1, events(train))
        write(tmp_path / name, "interactions", 2, events(test))
        tables = {name: RICH_TABLES[name] for name in ("user", "item")}
        model = {
            "user": {"features": [{"name": "uid", "table": "user"}]},
            "item": {"features": [{"name": "iid", "table": "item"}, *FEATURES]},
        }
        spec = spec_of(tmp_path / name, 2, tables=tables, model=model)
        run_steps(spec)
        found.append(outputs(spec)["items"]["neighbours"].to_pylist())
    assert found[0] == found[1]
    assert any(found[0])


@pytest.mark.parametrize(
    ("tower", "table", "message"),
    [
        ("user", "item", "belongs to the item tower"),
        ("item", "tag", "reads the table of the item IDs"),
    ],
)
def test_where_it_makes_no_sense_it_is_refused(tmp_path, tower, table, message):
    feature = {**FEATURES[0], "table": table}
    model = {**WITHOUT, tower: {"features": [*WITHOUT[tower]["features"], feature]}}
    with pytest.raises(ValidationError, match=message):
        spec_of(tmp_path, 4, tables=RICH_TABLES, model=model)


def test_without_item_ids_it_is_refused(tmp_path):
    tables = {name: RICH_TABLES[name] for name in ("user", "item")}
    model = {
        "user": {"features": [{"name": "uid", "table": "user"}]},
        "item": {"features": [FEATURES[0]]},
    }
    with pytest.raises(ValidationError, match="id feature of the item tower"):
        spec_of(tmp_path, 2, tables=tables, model=model)
