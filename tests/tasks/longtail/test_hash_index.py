"""The hash index against a dictionary: hits, misses, nulls, and IDs that share a hash."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.longtail import hash_index
from tasks.longtail.hash_index import HashIndex

integers = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 50)
texts = st.text(max_size=3)


def index_of(known, dtype):
    ids = pl.Series("id", list(known), dtype=dtype)
    return HashIndex(ids, np.array(list(known.values()), dtype=np.int32))


def look_up(index, ids):
    return index.values(ids).tolist()


@pytest.mark.parametrize(("kind", "dtype"), [(integers, pl.Int64()), (texts, pl.String())])
def test_like_a_dictionary(kind, dtype):
    @given(st.dictionaries(kind, st.integers(0, 2**31 - 1)), st.lists(st.none() | kind))
    def check(known, others):
        asked = [*known, *others]
        found = look_up(index_of(known, dtype), pl.Series("id", asked, dtype=dtype))
        assert found == [-1 if key is None else known.get(key, -1) for key in asked]

    check()


def test_unsigned_beyond_the_signed_range():
    known = {2**64 - 1: 5, 2**63: 6}
    asked = pl.Series([2**63, 2**63 - 1, 2**64 - 1, None], dtype=pl.UInt64())
    assert look_up(index_of(known, pl.UInt64()), asked) == [6, -1, 5, -1]


@pytest.mark.parametrize("constant", [0, 7])
def test_texts_that_share_a_hash_are_told_apart(monkeypatch, constant):
    def same(ids):
        return np.full(len(ids), constant, dtype=np.uint64)

    monkeypatch.setattr(hash_index, "_bits", same)
    index = index_of({key: n for n, key in enumerate("abc")}, pl.String())
    assert look_up(index, pl.Series(["c", "a", "x", "b", None])) == [2, 0, -1, 1, -1]


def test_the_integer_whose_hash_is_the_mark_of_an_empty_slot():
    # 0 is the only integer that the rounds map to 0.
    known = {0: 3, 1: 4}
    assert look_up(index_of(known, pl.Int64()), pl.Series([0, 1, 2, None])) == [3, 4, -1, -1]
    assert look_up(index_of({1: 4}, pl.Int64()), pl.Series([0, 1])) == [-1, 4]


def test_a_crowded_table_is_probed_around_its_end():
    # Hashes that all start at the last slot: every search passes the end of the table.
    odd = pow(0xBF58476D1CE4E5B9, -1, 2**64), pow(0x94D049BB133111EB, -1, 2**64)

    def unmixed(value):
        value = (value * odd[1]) % 2**64
        value ^= (value >> 27) ^ (value >> 54)
        value = (value * odd[0]) % 2**64
        return value ^ (value >> 30) ^ (value >> 60)

    keys = [unmixed(2**64 - 1 - n) for n in range(40)]
    known = {key: n for n, key in enumerate(keys[:20])}
    found = look_up(index_of(known, pl.UInt64()), pl.Series(keys, dtype=pl.UInt64))
    assert found == [*range(20), *[-1] * 20]


def test_many_ids():
    rng = np.random.default_rng(0)
    keys = rng.choice(2**40, 20_000, replace=False)
    known = dict(zip(keys.tolist(), range(20_000), strict=True))
    asked = np.concatenate([keys, rng.choice(2**40, 20_000)])
    found = look_up(index_of(known, pl.Int64()), pl.Series("id", asked))
    assert found == [known.get(key, -1) for key in asked.tolist()]
