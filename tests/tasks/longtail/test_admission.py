"""Which IDs own a row: against a plain-Python reference on random histories, and by hand.

Protects what a warm start relies on: no row with two owners, no owner that moves.
"""

from datetime import date, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.config import VocabularySettings
from tasks.errors import DataError
from tasks.longtail.admission import next_vocabulary
from tasks.longtail.encoding import Encoder
from tasks.longtail.vocabulary_table import Vocabulary
from tests.tasks.longtail.policy_reference import UNIT, Owner, next_owners, window_units

DAY = date(2026, 3, 1)


def window(counts, last_seen=DAY - timedelta(days=1), dtype=pl.String):
    return pl.DataFrame(
        {
            "id": pl.Series(list(counts), dtype=dtype),
            "units": pl.Series([round(c * UNIT) for c in counts.values()], dtype=pl.Int64),
            "last_seen": pl.Series([last_seen] * len(counts), dtype=pl.Date),
        }
    )


def rows_of(vocabulary):
    return dict(zip(vocabulary.table["id"], vocabulary.table["row"], strict=True))


def test_rows_start_above_the_buckets_by_count_then_id():
    policy = VocabularySettings(min_count=3, tail_buckets=4)
    found = next_vocabulary(None, window({"b": 5, "a": 5, "c": 9, "d": 2}), policy, DAY)
    assert rows_of(found) == {"c": 5, "a": 6, "b": 7}
    assert found.rows == 8
    assert (found.changes.promoted, found.changes.new_rows, found.changes.reused_rows) == (3, 3, 0)


def test_integers_tie_in_numeric_order_and_strings_in_byte_order():
    policy = VocabularySettings(min_count=1)
    numbers = next_vocabulary(None, window({10: 1, 9: 1}, dtype=pl.Int64()), policy, DAY)
    texts = next_vocabulary(None, window({"10": 1, "9": 1}), policy, DAY)
    assert rows_of(numbers) == {9: 2, 10: 3}
    assert rows_of(texts) == {"10": 2, "9": 3}


def test_an_owner_stays_until_keep_count_and_its_row_is_reused_lowest_first():
    policy = VocabularySettings(min_count=10, keep_count=4)
    first = next_vocabulary(None, window({"a": 30, "b": 20, "c": 10}), policy, DAY)
    assert rows_of(first) == {"a": 2, "b": 3, "c": 4}
    second = next_vocabulary(first, window({"a": 3, "b": 4, "c": 3, "x": 10, "y": 9}), policy, DAY)
    assert rows_of(second) == {"b": 3, "x": 2}
    assert (second.changes.kept, second.changes.demoted, second.changes.reused_rows) == (1, 2, 1)
    third = next_vocabulary(second, window({"b": 4, "x": 9, "p": 12, "q": 11}), policy, DAY)
    assert rows_of(third) == {"b": 3, "x": 2, "p": 4, "q": 5}


def test_an_id_that_was_not_seen_for_ttl_days_loses_its_row_whatever_its_count():
    policy = VocabularySettings(min_count=2, ttl_days=2)
    first = next_vocabulary(None, window({"a": 50}), policy, DAY)
    still = window({"a": 50})
    assert rows_of(next_vocabulary(first, still, policy, DAY + timedelta(days=1))) == {"a": 2}
    assert rows_of(next_vocabulary(first, still, policy, DAY + timedelta(days=2))) == {}
    # Nor does it come back before it is seen again.
    assert rows_of(next_vocabulary(None, still, policy, DAY + timedelta(days=2))) == {}


def test_keep_count_zero_keeps_an_owner_that_left_the_window():
    policy = VocabularySettings(min_count=2, keep_count=0)
    first = next_vocabulary(None, window({"a": 5}), policy, DAY)
    assert rows_of(next_vocabulary(first, window({"b": 1}), policy, DAY)) == {"a": 2}


def test_max_rows_lets_an_owner_compete_with_its_head_start():
    policy = VocabularySettings(min_count=4, keep_count=2, max_rows=2)
    first = next_vocabulary(None, window({"a": 9, "b": 8, "c": 7}), policy, DAY)
    assert rows_of(first) == {"a": 2, "b": 3}
    # b counts double as an owner: 4 × 2 > 7, but 3 × 2 < 7.
    held = next_vocabulary(first, window({"a": 9, "b": 4, "c": 7}), policy, DAY)
    assert rows_of(held) == {"a": 2, "b": 3}
    lost = next_vocabulary(first, window({"a": 9, "b": 3, "c": 7}), policy, DAY)
    assert rows_of(lost) == {"a": 2, "c": 3}


def test_coverage_takes_the_fewest_ids_that_reach_the_share():
    policy = VocabularySettings(coverage=0.8)
    found = next_vocabulary(None, window({"a": 50, "b": 30, "c": 15, "d": 5}), policy, DAY)
    assert rows_of(found) == {"a": 2, "b": 3}


def test_ids_that_change_their_type_are_refused():
    policy = VocabularySettings(min_count=1)
    first = next_vocabulary(None, window({"1": 5}), policy, DAY)
    with pytest.raises(DataError, match="changed their type"):
        next_vocabulary(first, window({1: 5}, dtype=pl.Int64()), policy, DAY)


@st.composite
def policies(draw):
    min_count = draw(st.integers(1, 6))
    buckets = draw(st.integers(1, 3))
    rule = draw(st.sampled_from(["count", "max_rows", "coverage"]))
    return VocabularySettings(
        min_count=min_count,
        keep_count=draw(st.none() | st.integers(0, min_count)),
        ttl_days=draw(st.none() | st.integers(1, 3)),
        max_rows=draw(st.integers(1, 5)) if rule == "max_rows" else None,
        coverage=draw(st.sampled_from([0.3, 0.75, 1.0])) if rule == "coverage" else None,
        decay=draw(st.sampled_from([1.0, 0.9, 0.5])),
        tail_buckets=buckets,
        hashes=draw(st.integers(1, 2)) if buckets > 1 else 1,
    )


day_counts = st.dictionaries(st.integers(0, 9), st.integers(1, 8), max_size=8)


def check_sequence(policy, days, window_days, random):
    counts = {DAY + timedelta(days=n): day for n, day in enumerate(days)}
    vocabulary: Vocabulary | None = None
    reference: dict[int, Owner] = {}
    for number in range(1, len(days) + 1):
        today = DAY + timedelta(days=number)
        units, seen = window_units(counts, today, window_days, policy.decay)
        order = list(units)
        random.shuffle(order)
        merged = pl.DataFrame(
            {
                "id": pl.Series(order, dtype=pl.Int64),
                "units": pl.Series([units[key] for key in order], dtype=pl.Int64),
                "last_seen": pl.Series([seen[key] for key in order], dtype=pl.Date),
            }
        )
        before: dict[int, int] = {} if vocabulary is None else rows_of(vocabulary)
        yesterday = vocabulary
        vocabulary = next_vocabulary(yesterday, merged, policy, today)
        if yesterday is not None and is_told_by_changes(policy):
            was = window_units(counts, today - timedelta(days=1), window_days, policy.decay)
            changed = changes_of(was, (units, seen), policy)
            total = sum(units.values())
            told = next_vocabulary(yesterday, changed, policy, today, total, only_changes=True)
            assert told.table.equals(vocabulary.table)
            assert told.changes == vocabulary.changes
        reference = next_owners(reference, units, seen, policy, today)
        found = rows_of(vocabulary)
        assert found == {key: owner.row for key, owner in reference.items()}
        assert len(set(found.values())) == len(found)
        assert all(before[key] == row for key, row in found.items() if key in before)
        assert all(policy.tail_buckets < row < vocabulary.rows for row in found.values())
        # The map is total: owners, tail IDs and IDs never seen all get codes.
        codes = Encoder(vocabulary, "t").codes(pl.Series(range(20)))
        assert (codes[:, 0] > 0).all()
        assert (codes < vocabulary.rows).all()


def is_told_by_changes(policy):
    """Whether an ID that neither owns a row nor changes cannot get one."""
    plain = policy.coverage is None and policy.max_rows is None
    return plain and policy.kept_from > 0 and policy.decay == 1


def changes_of(was, now, policy):
    """The IDs with other units or days than yesterday that had, or have, enough for a row."""
    keys = [
        key
        for key in set(was[0]) | set(now[0])
        if (was[0].get(key), was[1].get(key)) != (now[0].get(key), now[1].get(key))
        and max(was[0].get(key, 0), now[0].get(key, 0)) >= policy.kept_from * UNIT
    ]
    return pl.DataFrame(
        {
            "id": pl.Series(keys, dtype=pl.Int64),
            "units": pl.Series([now[0].get(key, 0) for key in keys], dtype=pl.Int64),
            "last_seen": pl.Series([(now[1].get(k) or was[1][k]) for k in keys], dtype=pl.Date),
        }
    )


sequences = given(
    policies(), st.lists(day_counts, min_size=1, max_size=7), st.integers(1, 4), st.randoms()
)


@settings(max_examples=60, deadline=None)
@sequences
def test_random_day_sequences_follow_the_reference(policy, days, window_days, random):
    check_sequence(policy, days, window_days, random)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=3000, deadline=None)
@sequences
def test_thousands_of_random_day_sequences_follow_the_reference(policy, days, window_days, random):
    check_sequence(policy, days, window_days, random)
