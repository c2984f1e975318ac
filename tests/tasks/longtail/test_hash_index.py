"""The hash index against a dictionary: hits, misses, nulls, and IDs that share a hash."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.longtail.hash_index import HashIndex
from tasks.longtail.id_hash import hash_ids

integers = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 50)
texts = st.text(max_size=3)


def index_of(known, dtype, hashes=None):
    ids = pl.Series("id", list(known), dtype=dtype)
    values = np.array(list(known.values()), dtype=np.int32)
    return HashIndex(ids, values, hash_ids(ids, 17).to_numpy() if hashes is None else hashes)


def look_up(index, ids):
    hashes = hash_ids(ids, 17).fill_null(0).to_numpy()
    return index.values(ids, hashes).tolist()


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


def test_ids_that_share_a_hash_are_told_apart():
    known = {key: n for n, key in enumerate("abc")}
    same = np.full(3, 7, dtype=np.uint64)
    index = index_of(known, pl.String(), same)
    asked = pl.Series(["c", "a", "x", "b", None])
    assert index.values(asked, np.full(5, 7, dtype=np.uint64)).tolist() == [2, 0, -1, 1, -1]


def test_many_ids():
    rng = np.random.default_rng(0)
    keys = rng.choice(2**40, 20_000, replace=False)
    known = dict(zip(keys.tolist(), range(20_000), strict=True))
    asked = np.concatenate([keys, rng.choice(2**40, 20_000)])
    found = look_up(index_of(known, pl.Int64()), pl.Series("id", asked))
    assert found == [known.get(key, -1) for key in asked.tolist()]
