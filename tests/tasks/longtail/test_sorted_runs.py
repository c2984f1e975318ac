"""Counting integers by sorting: exact at every edge of 64 bits, split and merged by place."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.longtail.id_hash import integers_at, place_integers
from tasks.longtail.sorted_runs import count_integers, merge_counts

EDGES = [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]
signed = st.lists(st.sampled_from(EDGES) | st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1))
unsigned = st.lists(st.sampled_from([0, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1))


def counted(run, is_signed=True):
    ids = run.integers(is_signed).tolist()
    assert len(set(ids)) == len(ids)
    assert (np.diff(run.places.astype(object)) > 0).all()
    return dict(zip(ids, run.counts.tolist(), strict=True))


@given(signed)
def test_signed_integers_are_counted_like_a_counter(values):
    assert counted(count_integers(np.array(values, dtype=np.int64))) == Counter(values)


@given(unsigned)
def test_unsigned_integers_beyond_the_signed_range_are_counted(values):
    assert counted(count_integers(np.array(values, dtype=np.uint64)), False) == Counter(values)


@given(st.lists(signed, min_size=1, max_size=5))
def test_merging_the_counts_of_pieces_equals_counting_the_whole(pieces):
    runs = [count_integers(np.array(piece, dtype=np.int64)) for piece in pieces]
    merged = merge_counts(
        np.concatenate([run.integers(True) for run in runs]),
        np.concatenate([run.counts for run in runs]).astype(np.uint32),
    )
    assert counted(merged) == sum((Counter(piece) for piece in pieces), Counter())
    assert merged.counts.dtype == np.int64


def test_sums_do_not_overflow_the_type_that_travels():
    top = np.full(3, 2**32 - 1, dtype=np.uint32)
    merged = merge_counts(np.array([7, 7, 7], dtype=np.int64), top)
    assert counted(merged) == {7: 3 * (2**32 - 1)}


def test_parts_are_the_top_bits_of_the_place():
    # 0x9E3779B97F4A7C15 is 2**64 over the golden ratio, made odd (Knuth, TAOCP 3, 6.4).
    values = np.arange(1000, dtype=np.int64)
    run = count_integers(values)
    starts = run.starts(8)
    assert starts[0] == 0
    assert starts[-1] == 1000
    for part in range(8):
        found = run.integers(True)[starts[part] : starts[part + 1]].tolist()
        expected = [n for n in range(1000) if (n * 0x9E3779B97F4A7C15 % 2**64) >> 61 == part]
        assert sorted(found) == expected
    assert run.starts(1).tolist() == [0, 1000]


@given(unsigned)
def test_a_place_gives_its_integer_back(values):
    ids = np.array(values, dtype=np.uint64)
    assert (integers_at(place_integers(ids)) == ids).all()
