"""`explain-id`: one ID's story against counts, promotions and buckets worked out by hand."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import xxhash
import yaml
from rich.console import Console

from tasks.cli import main
from tasks.errors import ConfigError
from tasks.explain_command import show
from tasks.explain_id import Bucket, BucketMate, DayCount, RowChange, explain_id
from tests.tasks.longtail.raw_lake import MODEL, at, day_of, events, run_steps, spec_of
from tests.tasks.longtail.raw_lake import write_partition as write

STEPS = ("await_partition", "count", "vocabulary")
POLICY = {"min_count": 4, "keep_count": 2, "decay": 0.5, "tail_buckets": 2}
COUNTS: dict[int, dict[str, int]] = {
    1: {"x": 6, "07": 4, "a": 1},
    2: {"x": 6, "b": 2},
    3: {"x": 6, "y": 6, "a": 2, "b": 3},
    4: {"x": 6, "y": 2, "07": 5, "a": 1, "c": 1, "d": 1, "e": 1, "f": 1},
    5: {"x": 1, "a": 100},
}
"""Occurrences of each item on each day."""


def settings(**policy: Any) -> dict[str, Any]:
    return {
        "tables": {
            "user": {"source": "interactions.user_id"},
            "item": {"source": "interactions.item_id", "vocabulary": {**POLICY, **policy}},
        },
        "data": {"window_days": 2},
    }


def fill(lake, name=str):
    for number, counts in COUNTS.items():
        rows = [
            (f"u{n}", name(item), at(number, n)) for item, k in counts.items() for n in range(k)
        ]
        write(lake, "interactions", number, events(rows))


def make_run(lake, number, **policy):
    spec = spec_of(lake, number, **settings(**policy))
    spec.save()
    run_steps(spec, *STEPS)
    return spec


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    lake = tmp_path_factory.mktemp("lake")
    fill(lake)
    for number in (4, 5):
        made = make_run(lake, number)
    return made


def test_an_owner_that_came_went_and_came_back(spec):
    found = explain_id(spec.config, "item", "07")
    # Window of two days, the older one at half weight. Day 2: 4. Day 3: 2, kept. Day 4: 0, gone;
    # y took its row 4 (3 is x's). Day 5: 5, and the lowest free row is 5.
    assert found.changes == (
        RowChange(day=day_of(2), change="promoted", row=4),
        RowChange(day=day_of(4), change="demoted", row=4),
        RowChange(day=day_of(5), change="promoted", row=5),
    )
    assert (found.row, found.codes, found.count) == (5, (5,), 5.0)
    assert found.days == tuple(
        DayCount(day=day_of(n), count=count, weight=weight)
        for n, count, weight in ((1, 4, 0), (2, 0, 0), (3, 0, 0.5), (4, 5, 1))
    )
    assert found.buckets == ()
    assert (found.day, found.known_since) == (day_of(5), day_of(2))
    assert found.tail_rows == (1 + xxhash.xxh3_64_intdigest(b"07", seed=17) % 2,)


def test_an_earlier_run_knows_nothing_of_later_days(spec):
    found = explain_id(spec.config, "item", "07", day=day_of(4))
    assert (found.row, found.count) == (None, 0.0)
    assert [day.day for day in found.days] == [day_of(n) for n in (1, 2, 3)]
    assert [change.change for change in found.changes] == ["promoted", "demoted"]


def bucket_of(item, seed=17, buckets=2):
    return 1 + xxhash.xxh3_64_intdigest(item.encode(), seed=seed) % buckets


def test_a_tail_id_and_who_shares_its_bucket(spec):
    found = explain_id(spec.config, "item", "a", mates=2)
    row = bucket_of("a")
    assert (found.row, found.codes, found.tail_rows) == (None, (row,), (row,))
    assert found.changes == ()
    # Days 3 and 4 at weights 0.5 and 1; x, y and 07 own rows.
    weighed = {"a": 2.0, "b": 1.5, "c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0}
    inside = {item: count for item, count in weighed.items() if bucket_of(item) == row}
    others = sorted(((-count, item) for item, count in inside.items() if item != "a"))[:2]
    assert len(others) == 2
    assert found.buckets == (
        Bucket(
            row=row,
            ids=len(inside),
            count=sum(inside.values()),
            mates=tuple(
                BucketMate(id=item, count=-count, shares_all=True) for count, item in others
            ),
        ),
    )


def test_two_hashes_tell_one_vector_from_one_shared_bucket(tmp_path):
    fill(tmp_path)
    made = make_run(tmp_path, 5, hashes=2, tail_buckets=3)
    tail = ("a", "b", "c", "d", "e", "f")
    pairs = {item: sorted(bucket_of(item, seed, 3) for seed in (17, 18)) for item in tail}
    for item in tail:
        found = explain_id(made.config, "item", item)
        assert sorted(found.codes) == pairs[item]
        assert {bucket.row for bucket in found.buckets} == set(pairs[item])
        for bucket in found.buckets:
            assert {mate.id: mate.shares_all for mate in bucket.mates} == {
                other: pairs[other] == pairs[item]
                for other in tail
                if other != item and bucket.row in pairs[other]
            }


def test_an_id_that_was_never_seen_has_a_bucket_too(spec):
    found = explain_id(spec.config, "item", "7")
    assert (found.row, found.count, found.codes) == (None, 0.0, (bucket_of("7"),))
    assert all(day.count == 0 for day in found.days)


def test_integers_are_read_as_integers(tmp_path):
    fill(tmp_path, name=lambda item: int.from_bytes(item.encode(), "big"))
    made = make_run(tmp_path, 5)
    number = int.from_bytes(b"07", "big")
    found = explain_id(made.config, "item", f"0{number}")
    assert (found.id, found.row) == (number, 5)
    for text in ("x", "1.0", "", str(2**63)):
        with pytest.raises(ConfigError, match="is no ID of table 'item'"):
            explain_id(made.config, "item", text)


def test_a_chain_whose_older_days_were_removed_still_names_the_last_promotion(spec, tmp_path):
    fill(tmp_path)
    made = make_run(tmp_path, 5)
    made.lake().delete(f"vocabulary/item/dt={day_of(3)}")
    found = explain_id(made.config, "item", "07")
    assert found.changes == (RowChange(day=day_of(5), change="promoted", row=5),)
    assert found.known_since == day_of(4)
    assert explain_id(made.config, "item", "x").changes[0].day == day_of(2)


def test_clear_errors(spec, tmp_path):
    with pytest.raises(ConfigError, match="no embedding table 'itme'") as caught:
        explain_id(spec.config, "itme", "a")
    assert "did you mean 'item'" in str(caught.value)
    with pytest.raises(ConfigError, match=f"no run of {day_of(3)} has made a vocabulary"):
        explain_id(spec.config, "item", "a", day=day_of(3))
    with pytest.raises(ConfigError, match="no run nowhere has made") as caught:
        explain_id(spec.config, "item", "a", run="nowhere")
    assert spec.run_id in str(caught.value)
    empty = spec_of(tmp_path, 5, **settings()).config
    with pytest.raises(ConfigError, match="no run has made a vocabulary yet"):
        explain_id(empty, "item", "a")


def test_the_command_prints_json_and_a_table_that_fits(spec, tmp_path, capsys):
    file = tmp_path / "own.yaml"
    body = {"name": "own", "lake": spec.config.lake, "model": MODEL, **settings()}
    file.write_text(yaml.safe_dump(body))
    arguments = ["explain-id", "item", "07", "--config", str(file), "--day", str(day_of(5))]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["id"], printed["row"]) == ("07", 5)
    assert main(arguments) == 0
    assert "owns row 5 with 5 occurrences" in capsys.readouterr().out
    out = io.StringIO()
    show(explain_id(spec.config, "item", "a"), Console(file=out, width=80))
    text = out.getvalue()
    assert f"shares bucket row {bucket_of('a')}" in text
    assert "never owned a row" in text
    assert all(len(line) <= 80 for line in text.splitlines())
