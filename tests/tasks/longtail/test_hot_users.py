"""A hot user: cut by time without a trace, and spread over all shards."""

import random

import pyarrow as pa
import pytest

from tasks.longtail import build_examples, example_events
from tasks.longtail import events as example_stages
from tests.tasks.longtail.examples_reference import reference
from tests.tasks.longtail.raw_lake import (
    MODEL,
    TABLES,
    at,
    events,
    run_steps,
    spec_of,
    write_partition,
)
from tests.tasks.longtail.world import by_user_id, outputs


def hot_days(users):
    """Days on which one user has a tenth of all events, some of them at one instant."""
    rng = random.Random(3)
    return {
        number: [
            (
                users(rng.randrange(400)) if n % 10 else users(1000),
                f"i{rng.randrange(90)}",
                at(number, 20 * (n // 3)),
            )
            for n in range(2000)
        ]
        for number in (1, 2, 3, 4)
    }


@pytest.mark.parametrize("users", [lambda n: f"u{n}", lambda n: n * 0x5851F42D4C957F2D % 2**63])
def test_a_hot_user_is_cut_by_time_and_no_row_differs(tmp_path, monkeypatch, users):
    """Its events are more than a part; its histories and all that is known of it stay whole."""
    days = hot_days(users)
    held: list[int] = []
    for module in (example_events, example_stages):
        monkeypatch.setattr(module, "read_events", watched(held, module.read_events))
    found, specs = [], []
    for rows_of_a_part in (1 << 40, 250):
        lake = tmp_path / str(rows_of_a_part)
        for number, day in days.items():
            kinds = pa.array(["web" if n % 4 else None for n in range(len(day))])
            write_partition(lake, "interactions", number, events(day, device=kinds))
        features = [*MODEL["user"]["features"], {"name": "device", "table": "device"}]
        device = {"source": "interactions.device", "vocabulary": {"min_count": 1}}
        spec = spec_of(
            lake,
            4,
            tables={**TABLES, "device": device},
            model={"user": {"features": features}, "item": MODEL["item"]},
        )
        monkeypatch.setattr(build_examples, "PART_BYTES", rows_of_a_part * 192)
        held.clear()
        run_steps(spec)
        found.append(outputs(spec))
        specs.append(spec)
    whole, cut = found
    assert specs[1].output("examples", "examples").manifest.meta["parts"] == 32
    # 600 events of the hot user; no task has more than a slice of a day beside its part.
    assert max(held) < 420
    for name in ("items", "tfidf", "uniform", "popularity"):
        assert whole[name].equals(cut[name])
    for name in ("train", "users", "test"):
        assert by_user_id(whole, name) == by_user_id(cut, name)
    assert cut["users"]["user"].to_pylist() == list(range(cut["users"].num_rows))


def watched(held, real):
    """Notes how many events are in memory at once."""

    def read(lake, paths, part):
        events_of_part = real(lake, paths, part)
        held.append(events_of_part.height)
        return events_of_part

    return read


def test_a_hot_user_has_all_its_histories_and_fills_no_shard(tmp_path):
    """One user has a tenth of all events."""
    rng = random.Random(3)
    rows = {
        number: [
            (f"u{rng.randrange(400)}" if n % 10 else "hot", f"i{rng.randrange(90)}", at(number, n))
            for n in range(2000)
        ]
        for number in (1, 2)
    }
    for number, day in rows.items():
        write_partition(tmp_path, "interactions", number, events(day))
    spec = spec_of(tmp_path, 2)
    run_steps(spec)
    expected = reference(rows[1], rows[2], [], 4)
    tables = outputs(spec)
    corpus = tables["items"]["item_id"].to_pylist()
    names = tables["users"]["user_id"].to_pylist()
    train = tables["train"].to_pydict()
    found = [
        (item, past)
        for user, item, past in zip(train["user"], train["item"], train["history"], strict=True)
        if names[user] == "hot"
    ]
    assert sorted((corpus[i], tuple(corpus[p] for p in past)) for i, past in found) == sorted(
        (item, past) for user, item, _, past in expected.train if user == "hot"
    )
    # No shard has more of the hot user than its share: a reader is not stalled by it either.
    shards = [e for e in spec.output("examples", "examples").manifest.files if "/train/" in e.path]
    assert len(shards) == 8
    start, hot = 0, names.index("hot")
    for entry in shards:
        users = train["user"][start : start + (entry.rows or 0)]
        start += len(users)
        # 200 of 2000 rows over 8 shards: 25 each, four standard deviations.
        assert abs(users.count(hot) - 25) < 20
