"""Sketches of the IDs seen once: what they hold, what a window makes of them, how far they err.

Protects the exact mode (its bytes do not know of sketches), and what is promised of the other one:
an ID that a day of the window counted is never counted too low, and too high only by chance.
"""

import random
import sys
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from tasks.config import TableSettings
from tasks.errors import ConfigError, LakeError
from tasks.explain_id import explain_id
from tasks.longtail import cluster, day_counts, seen_once, window_merge
from tasks.longtail.seen_once import found_in, sketch_of
from tests.tasks.longtail.policy_reference import UNIT, Owner, next_owners, window_units
from tests.tasks.longtail.raw_lake import (
    TABLES,
    at,
    day_of,
    events,
    read_output,
    run_steps,
    spec_of,
    write_partition,
)
from tests.tasks.longtail.test_window_merge import POLICIES, files, large, text

pytest.importorskip("datasketches", reason="needs Apache DataSketches: install tailtower[sketch]")

SURE = 0.9999
"""So confident that no sketch of these tests errs."""


def tables(policy: dict[str, Any], confidence: float = SURE, mode: str = "sketch"):
    user = {
        "source": "interactions.user_id",
        "vocabulary": policy,
        "seen_once": mode,
        "sketch_confidence": confidence,
    }
    return {**TABLES, "user": user}


def fill(lake, days, ids=text):
    """Days of {number of a user: occurrences}, and a test day."""
    for number, counts in enumerate(days, start=1):
        rows = [user for user, count in counts.items() for _ in range(count)]
        write_partition(
            lake,
            "interactions",
            number,
            events([(ids(user), "i", at(number, n)) for n, user in enumerate(rows)]),
        )


def run_days(lake, days, policy, *, window_days=3, **options):
    spec = spec_of(
        lake, len(days) + 1, tables=tables(policy, **options), data={"window_days": window_days}
    )
    spec.save()
    run_steps(spec, "count", "vocabulary")
    return spec


def counts_of(spec, number):
    """The table of a day, and the manifest's facts."""
    name = f"user/{day_of(number)}"
    rows = read_output(spec, "count", name).to_pydict()
    table = dict(zip(rows["id"], rows["count"], strict=True))
    return table, spec.output("count", name).manifest.meta


def owners(spec):
    found = read_output(spec, "vocabulary", "user").to_pydict()
    return dict(zip(found["id"], found["count"], strict=True))


# Sketches ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        pl.Series([2**63 - 1, -(2**63), 0, -1, 2**53 + 1], dtype=pl.Int64),
        pl.Series([2**64 - 1, 2**63, 2**63 - 1, 0], dtype=pl.UInt64),
        pl.Series(["", "7", "07", "é", "e\u0301", "\x00", "x" * 100_000]),
    ],
)
def test_every_kind_of_id_is_found_and_its_neighbours_are_not(ids):
    sketch = sketch_of(ids.slice(1), SURE)
    assert sketch.total_weight == len(ids) - 1
    assert found_in(sketch, ids).tolist() == [False, *[True] * (len(ids) - 1)]


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.99])
def test_absent_ids_are_found_as_seldom_as_promised(confidence):
    present, absent = pl.Series(range(20_000)), pl.Series(range(20_000, 60_000))
    sketch = sketch_of(present, confidence)
    assert found_in(sketch, present).all()
    assert 0 < found_in(sketch, absent).mean() <= 1 - confidence


def test_a_sketch_depends_on_its_ids_alone(monkeypatch):
    ids = pl.Series(range(5000))
    expected = sketch_of(ids, 0.9).serialize()
    monkeypatch.setattr(seen_once, "_BLOCK", 777)
    assert sketch_of(ids.shuffle(seed=3), 0.9).serialize() == expected


# Counts ------------------------------------------------------------------------------------


def test_a_day_lists_what_it_saw_twice_and_sketches_the_rest(tmp_path):
    days = [{1: 1, 2: 2, 3: 1, 4: 5}, {1: 1, 3: 1}]
    fill(tmp_path, days)
    spec = run_days(tmp_path, days, {"min_count": 3})
    table, meta = counts_of(spec, 1)
    assert table == {text(2): 2, text(4): 5}
    assert (meta["ids"], meta["events"], meta["nulls"], meta["seen_once"]) == (4, 9, 0, 2)
    assert counts_of(spec, 2)[0] == {}
    item = spec.output("count", f"item/{day_of(1)}")
    assert set(item.manifest.meta) == {"ids", "events", "nulls", "parts", "id_type"}
    assert item.manifest.settings == {"column": "item_id", "format": 1}
    assert [path.rsplit(".", 1)[1] for path in item.files()] == ["parquet"]


def test_the_other_mode_counts_again_and_exact_counts_are_found_again(tmp_path):
    days = [{1: 1, 2: 2}]
    fill(tmp_path, days)
    before = run_days(tmp_path, days, {"min_count": 1}, mode="exact").require("count")
    spec = run_days(tmp_path, days, {"min_count": 1})
    assert spec.require("count").facts["counted_days"] == 1
    assert counts_of(spec, 1)[0] == {text(2): 2}
    after = run_days(tmp_path, days, {"min_count": 1}, mode="exact").require("count")
    assert (after.facts["counted_days"], after.digests) == (0, before.digests)


def test_an_id_that_the_library_loses_is_noticed(tmp_path, monkeypatch):
    real = seen_once._keys_in_blocks
    monkeypatch.setattr(seen_once, "_keys_in_blocks", lambda ids: real(ids.slice(1)))
    fill(tmp_path, [{1: 1, 2: 1, 3: 3}])
    with pytest.raises(LakeError, match=r"do not add up: 4 counted \+ 0 nulls != 5"):
        run_days(tmp_path, [{}], {"min_count": 1})


# Windows -----------------------------------------------------------------------------------


def test_hand_made_days(tmp_path):
    """Window of three days, the newest weighs 1, the others 1/2 and 1/4."""
    days = [
        {1: 4, 2: 1, 3: 2, 5: 1},
        {1: 1, 2: 1, 3: 1, 4: 2},
        {1: 1, 2: 1, 3: 1, 4: 1, 6: 1},
    ]
    fill(tmp_path, days)
    spec = run_days(tmp_path, days, {"min_count": 2, "decay": 0.5, "tail_buckets": 2})
    # 1: 4/4 + 1/2 + 1.  3: 2/4 + 1/2 + 1.  4: 2/2 + 1.  2 occurs daily, but never twice.
    assert owners(spec) == {text(1): 2.5, text(3): 2.0, text(4): 2.0}
    health = spec.output("vocabulary", "user").manifest.meta["health"]
    # 8/4 + 5/2 + 5 occurrences, 6.5 of them the owners'.
    assert (health["events"], health["covered_share"]) == (9.5, round(6.5 / 9.5, 6))
    assert health["ids"] == 3


def test_who_is_seen_once_a_day_leaves_with_the_day_that_counted_it(tmp_path):
    days = [{1: 2, 2: 2}, {1: 1}, {1: 1}, {1: 1}]
    fill(tmp_path, days)
    policy = {"min_count": 2, "keep_count": 1}
    spec = run_days(tmp_path, days, policy, window_days=3)
    assert owners(spec) == {}
    assert owners(run_days(tmp_path, days[:3], policy, window_days=3)) == {
        text(1): 4.0,
        text(2): 2.0,
    }


def test_a_single_occurrence_keeps_an_owner_alive(tmp_path):
    days = [{1: 5, 2: 5}, {9: 2}, {1: 1, 9: 2}]
    fill(tmp_path, days)
    spec = run_days(tmp_path, days, {"min_count": 2, "ttl_days": 2})
    assert owners(spec) == {text(1): 6.0, text(9): 4.0}


def same(number):
    return number


def random_days(seed, ids, least=1):
    """Seven days on which many users are seen once, if `least` allows it."""
    rng = random.Random(seed)
    drawn = [rng.choices([0, 1, 2, 3, 9], [40, 40, 10, 6, 4], k=80) for _ in range(7)]
    return [
        {ids(n): count for n, count in enumerate(day) if count >= max(least, 1)} for day in drawn
    ]


def in_small_parts(monkeypatch):
    monkeypatch.setattr(day_counts, "ROWS_PER_PART", 40)
    monkeypatch.setattr(window_merge, "ROWS_PER_PART", 10)
    monkeypatch.setattr(window_merge, "ROWS_TO_KEEP", 1)


@pytest.mark.parametrize("ids", [text, large])
@pytest.mark.parametrize("name", [name for name in POLICIES if "coverage" not in name])
def test_random_days_follow_the_reference_that_knows_who_was_counted(
    tmp_path, monkeypatch, name, ids
):
    in_small_parts(monkeypatch)
    days = random_days(1, ids)
    fill(tmp_path, days, same)
    spec = run_days(tmp_path, days, POLICIES[name])
    policy = spec.config.tables["user"].vocabulary
    dates = {day_of(n): day for n, day in enumerate(days, start=1)}
    expected: dict[Any, Owner] = {}
    for number in range(2, len(days) + 2):
        units, seen = window_units(dates, day_of(number), 3, policy.decay)
        counted = counted_in_window(days, number)
        assert set(units) > counted
        units = {key: units[key] for key in counted}
        seen = {key: seen[key] for key in counted}
        expected = next_owners(expected, units, seen, policy, day_of(number))
    assert owners(spec) == {key: owner.units / UNIT for key, owner in expected.items()}
    assert not list(tmp_path.glob("window/user/*"))


def counted_in_window(days, number, window_days=3):
    """Who was seen twice on a day of the window before day `number`."""
    window = days[max(0, number - 1 - window_days) : number - 1]
    return {key for day in window for key, count in day.items() if count > 1}


@pytest.mark.parametrize("name", POLICIES)
def test_without_single_occurrences_nothing_changes(tmp_path, monkeypatch, name):
    days = random_days(2, large, least=2)
    found = []
    for mode in ("exact", "sketch"):
        fill(tmp_path / mode, days, same)
        if mode == "sketch":
            in_small_parts(monkeypatch)
        # Empty sketches cannot err, however little confidence is asked of them.
        spec = run_days(tmp_path / mode, days, POLICIES[name], confidence=0.5, mode=mode)
        found.append(files(spec))
    assert len(found[0]) == len(days)
    assert found[0] == found[1]


def test_coverage_counts_the_occurrences_that_only_sketches_hold(tmp_path):
    days = [{1: 6, 2: 3, 3: 2, **dict.fromkeys(range(10, 15), 1)}]
    fill(tmp_path, days)
    # Half of 16 occurrences; half of the 11 in the table would be 1's alone.
    spec = run_days(tmp_path, days, {"coverage": 0.5})
    assert owners(spec) == {text(1): 6.0, text(2): 3.0}


def test_counts_err_upwards_only_on_days_without_the_id_and_as_seldom_as_promised(tmp_path):
    days, confidence = random_days(3, large), 0.8
    fill(tmp_path, days, same)
    spec = run_days(tmp_path, days, {"min_count": 1}, confidence=confidence, window_days=7)
    found = owners(spec)
    assert set(found) == counted_in_window(days, 8, 7)
    truth = {key: sum(day.get(key, 0) for day in days) for key in found}
    absences = {key: sum(key not in day for day in days) for key in found}
    errors = {key: found[key] - truth[key] for key in found}
    assert all(0 <= errors[key] <= absences[key] for key in found)
    assert 0 < sum(errors.values()) <= (1 - confidence) * sum(absences.values())


def test_files_batches_and_parts_change_nothing_not_even_the_errors(tmp_path, monkeypatch):
    """Sketches follow a day's rows alone, so their errors are the same everywhere."""
    monkeypatch.setattr(day_counts, "ROWS_PER_PART", 40)
    days = random_days(4, large)
    whole, split = tmp_path / "whole", tmp_path / "split"
    fill(whole, days, same)
    for number, day in enumerate(days, start=1):
        rows = [user for user, count in day.items() for _ in range(count)]
        table = events([(user, "i", at(number)) for user in rows[::-1]])
        parts = {"z.parquet": table.slice(0, 50), "b.parquet": table.slice(50)}
        write_partition(split, "interactions", number, parts)
    policy = {"min_count": 2, "tail_buckets": 3}
    digests = []
    for lake, batch_bytes, rows_per_part in ((whole, "64MiB", 1 << 22), (split, 1024, 10)):
        monkeypatch.setattr(window_merge, "ROWS_PER_PART", rows_per_part)
        spec = spec_of(
            lake,
            len(days) + 1,
            tables=tables(policy, 0.5),
            data={"window_days": 5},
            dask={"batch_bytes": batch_bytes},
        )
        run_steps(spec, "count", "vocabulary")
        counts = [spec.output("count", f"user/{day_of(n + 1)}") for n in range(len(days))]
        assert counts[0].manifest.meta["parts"] > 1
        assert len(counts[0].files()) == 2 * len(counts[0].tables())
        content = [[entry.digest for entry in found.manifest.files] for found in counts]
        digests.append((content, files(spec)))
    assert digests[0] == digests[1]


@pytest.mark.integration
@pytest.mark.timeout(240)
def test_dask_workers_make_the_same_sketches(tmp_path, monkeypatch):
    monkeypatch.setattr(day_counts, "ROWS_PER_PART", 40)
    days = random_days(5, text)
    found = []
    for name, small in (("inline", 1 << 30), ("workers", 0)):
        monkeypatch.setattr(cluster, "SMALL_BYTES", small)
        fill(tmp_path / name, days, same)
        spec = run_days(tmp_path / name, days, {"min_count": 3}, confidence=0.5)
        found.append([spec.require(step).digests for step in ("count", "vocabulary")])
    assert found[0] == found[1]


def test_other_steps_see_past_the_sketches(tmp_path):
    """Examples look for hot users in the counts, an explanation looks for one ID."""
    days = [{1: 3, 2: 1, 3: 1}, {1: 1, 2: 1}, {1: 1}]
    fill(tmp_path, days)
    spec = spec_of(tmp_path, 3, tables=tables({"min_count": 3}))
    spec.save()
    run_steps(spec)
    explained = explain_id(spec.config, "user", text(1))
    assert ([day.count for day in explained.days], explained.row) == ([3, 1], 2)
    assert "count only beside a day with more" in explained.rule
    other = explain_id(spec.config, "user", text(2))
    assert ([day.count for day in other.days], other.row) == ([1, 1], None)


# What is refused ---------------------------------------------------------------------------


def test_without_the_library_nothing_is_counted(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    fill(tmp_path, [{1: 1}])
    with pytest.raises(ConfigError, match="DataSketches is not installed") as caught:
        run_days(tmp_path, [{}], {"min_count": 1})
    assert "tailtower[sketch]" in str(caught.value)
    assert not list(tmp_path.glob("counts/**/*.parquet"))


def test_side_tables_and_senseless_confidences_are_refused():
    with pytest.raises(ValidationError, match=r"is for interactions\.\*"):
        TableSettings(source="items.tags", seen_once="sketch")
    for confidence in (0.3, 1.0):
        with pytest.raises(ValidationError, match="sketch_confidence"):
            TableSettings(source="interactions.user_id", sketch_confidence=confidence)


def test_a_damaged_sketch_is_named(tmp_path):
    days = [{1: 1, 2: 2}, {1: 2}]
    fill(tmp_path, days)
    spec = spec_of(tmp_path, 3, tables=tables({"min_count": 1}))
    run_steps(spec, "count")
    (victim,) = tmp_path.glob(f"counts/user/dt={day_of(1)}/*/*/*.sketch")
    victim.write_bytes(victim.read_bytes()[:20])
    with pytest.raises(LakeError, match="not a readable sketch") as caught:
        run_steps(spec, "vocabulary")
    assert str(caught.value.where).endswith(str(victim.relative_to(tmp_path)))
