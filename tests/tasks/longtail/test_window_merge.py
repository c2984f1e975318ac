"""Windows merged in parts and carried on from day to day: the same bytes as merged at once."""

import random
from datetime import date
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.lake import Lake
from tasks.longtail import day_counts, window_merge
from tasks.longtail.cluster import Inline
from tasks.longtail.window import UNIT, add_up, carry_text, combine
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

POLICIES: dict[str, dict[str, Any]] = {
    "plain": {"min_count": 4, "tail_buckets": 5, "hashes": 2},
    "one_bucket": {"min_count": 3},
    "ttl": {"min_count": 3, "keep_count": 1, "ttl_days": 1, "tail_buckets": 3},
    "keep_for_ever": {"min_count": 4, "keep_count": 0, "tail_buckets": 3},
    "max_rows": {"min_count": 2, "max_rows": 6, "tail_buckets": 3},
    "coverage": {"coverage": 0.6, "tail_buckets": 3},
    "coverage_ttl": {"coverage": 0.9, "ttl_days": 1, "tail_buckets": 3},
    "decay": {"min_count": 3, "decay": 0.7, "tail_buckets": 3},
    "decay_coverage": {"coverage": 0.7, "decay": 0.6, "tail_buckets": 3},
}
DAYS = 7


def rows_of(number, ids):
    """Users come and go; the days differ in size, so that their counts have other parts."""
    rng = random.Random(number)
    rows = 30 + 60 * (number % 3)
    return [
        (ids(int(rng.paretovariate(0.8)) % 60 + 7 * number), f"i{n % 5}", at(number, n))
        for n in range(rows)
    ]


def text(number):
    return f"ü{number}"


def large(number):
    return (number * 0x5851F42D4C957F2D + 1) % 2**63 - 2**62


def run_chain(lake, policy, ids):
    for number in range(1, DAYS + 1):
        write_partition(lake, "interactions", number, events(rows_of(number, ids)))
    tables = {**TABLES, "user": {"source": "interactions.user_id", "vocabulary": policy}}
    spec = spec_of(lake, DAYS + 1, tables=tables, data={"window_days": 3})
    run_steps(spec, "count", "vocabulary")
    return spec


def files(spec):
    """Content of the vocabularies of every day."""
    lake = Lake(spec.config.lake)
    return {
        path.parent.parent.name: [
            entry.digest for entry in lake.open_published(str(path.parent)).manifest.files
        ]
        for path in sorted(
            found.relative_to(spec.config.lake)
            for found in lake.local_path("vocabulary/user").glob("dt=*/*/manifest.json")
        )
    }


@pytest.mark.parametrize("ids", [text, large])
@pytest.mark.parametrize("name", POLICIES)
def test_parts_and_kept_windows_change_nothing(tmp_path, monkeypatch, name, ids):
    whole = run_chain(tmp_path / "whole", POLICIES[name], ids)
    assert not (tmp_path / "whole" / "window").exists()
    tasks: list[Any] = []
    real = Inline.map

    def watched(self, title, function, items):
        tasks.extend(items)
        return real(self, title, function, items)

    monkeypatch.setattr(Inline, "map", watched)
    monkeypatch.setattr(day_counts, "ROWS_PER_PART", 40)
    monkeypatch.setattr(window_merge, "ROWS_PER_PART", 25)
    monkeypatch.setattr(window_merge, "ROWS_TO_KEEP", 1)
    parts = run_chain(tmp_path / "parts", POLICIES[name], ids)
    assert len(files(whole)) == DAYS
    assert files(parts) == files(whole)
    merges = [task for task in tasks if hasattr(task, "least_units")]
    assert {task.parts for task in merges} >= {2, 4}
    carried = [task for task in merges if task.before and "window/user" in task.before.top]
    assert bool(carried) == ("decay" not in POLICIES[name])
    only = any(task.only_changes for task in carried)
    assert only == (ids is large and name in ("plain", "one_bucket", "ttl"))
    kept = [day.name for day in (tmp_path / "parts").glob("window/user/*")]
    # Days point to what the days before them wrote.
    expected = [f"dt={day_of(n)}" for n in range(2, DAYS + 2)]
    assert sorted(kept) == ([] if "decay" in POLICIES[name] else expected)


def test_a_kept_window_that_is_gone_is_rebuilt_from_the_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(window_merge, "ROWS_TO_KEEP", 1)
    spec = run_chain(tmp_path, POLICIES["plain"], large)
    before = files(spec)
    lake = Lake(str(tmp_path))
    for dataset in ("window", "vocabulary"):
        lake.delete(dataset)
    run_steps(spec, "vocabulary")
    assert files(spec) == before


def test_a_late_file_is_not_covered_up_by_a_kept_window(tmp_path, monkeypatch):
    late = events([(large(900), "i", at(6))] * 9)
    expected = None
    for keep in (1 << 40, 1):
        monkeypatch.setattr(window_merge, "ROWS_TO_KEEP", keep)
        lake = tmp_path / str(keep)
        run_chain(lake, POLICIES["plain"], large)
        write_partition(lake, "interactions", 6, {"late.parquet": late})
        spec = run_chain(lake, POLICIES["plain"], large)
        found = read_output(spec, "vocabulary", "user").to_pydict()
        assert dict(zip(found["id"], found["count"], strict=True))[large(900)] == 9
        assert expected in (None, found)
        expected = found


def window_of(rows, dtype):
    """A window of (ID, units, day of January)."""
    ids, units, days = zip(*rows, strict=True)
    return pl.DataFrame(
        {
            "id": pl.Series(ids).cast(dtype),
            "units": pl.Series(units, dtype=pl.Int64),
            "last_seen": pl.Series([date(2026, 1, day) for day in days]),
        }
    )


def as_dict(window):
    return {int(i): (units, seen.day) for i, units, seen in window.iter_rows()}


IDS = [pl.Int64(), pl.UInt64(), pl.String()]
ROWS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from([-2, -1, 1, 2]), st.integers(1, 9)), min_size=1
)


@settings(max_examples=150, deadline=None)
@given(before=ROWS, changes=ROWS)
def test_a_window_of_text_that_is_carried_on_is_the_window_merged_anew(before, changes):
    old = combine([window_of(before, pl.String())])
    if old.is_empty():
        return
    more = add_up([window_of(changes, pl.String())])
    found, was, now = carry_text(old, more)
    expected = combine([old, more])
    assert as_dict(found) == as_dict(expected)
    assert found.schema == expected.schema
    for ids, units in ((old, was), (expected, now)):
        known = {key: value for key, (value, _) in as_dict(ids).items()}
        assert units.tolist() == [known.get(int(i), 0) for i in more["id"]]


def test_a_day_that_enters_while_another_leaves_is_the_last_that_an_id_was_seen():
    old = window_of([(1, UNIT, 1), (2, UNIT, 2)], pl.String())
    found, was, now = carry_text(
        combine([old]), add_up([window_of([(1, UNIT, 9), (1, -UNIT, 1)], pl.String())])
    )
    assert as_dict(found) == {1: (UNIT, 9), 2: (UNIT, 2)}
    assert (was.tolist(), now.tolist()) == ([UNIT], [UNIT])


@pytest.mark.parametrize("dtype", IDS)
def test_windows_add_up_by_id(dtype):
    def frame(rows):
        return window_of(rows, dtype)

    found = combine(
        [
            frame([(1, UNIT, 1), (2, 2 * UNIT, 1), (3, UNIT, 1)]),
            frame([(3, 5, 4), (1, UNIT, 3)]),
            frame([(2, -2 * UNIT, 1)]),
        ]
    )
    assert as_dict(found) == {1: (2 * UNIT, 3), 3: (UNIT + 5, 4)}
    assert found.schema["id"] == dtype
