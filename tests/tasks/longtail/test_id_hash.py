"""The hash must never change: it places every tail ID of every model that was ever trained."""

import polars as pl
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tasks.longtail.id_hash import hash_ids, partition_of, parts_for, tail_buckets

# XXH3-64 of the UTF-8 bytes, from the reference implementation's Python binding (xxhash 3.8).
GOLDEN = {
    ("", 0): 0x2D06800538D394C2,
    ("a", 0): 0xE6C632B61E964E1F,
    ("0104257", 17): 0x2CEEA82A5A7580B9,
    ("Fantômas", 17): 0x9F591514A2CD31F5,
    ("0104257", 18): 0x21DC672BA0651A2,
}


@pytest.mark.parametrize(("text", "seed"), GOLDEN)
def test_golden_values(text, seed):
    assert hash_ids(pl.Series([text]), seed)[0] == GOLDEN[text, seed]


@given(st.lists(st.text() | st.none(), max_size=20), st.integers(0, 2**64 - 1))
def test_strings_hash_like_the_reference_library(texts, seed):
    found = hash_ids(pl.Series(texts, dtype=pl.String), seed).to_list()
    expected = [
        None if text is None else xxhash.xxh3_64_intdigest(text.encode(), seed=seed)
        for text in texts
    ]
    assert found == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_integers_hash_as_their_decimal_digits(numbers):
    found = hash_ids(pl.Series(numbers, dtype=pl.Int64), 5).to_list()
    assert found == [xxhash.xxh3_64_intdigest(str(n).encode(), seed=5) for n in numbers]


def test_large_unsigned_integers_leading_zeros_and_unicode_twins_stay_apart():
    large = hash_ids(pl.Series([2**64 - 1], dtype=pl.UInt64), 0)[0]
    assert large == xxhash.xxh3_64_intdigest(b"18446744073709551615")
    twins = hash_ids(pl.Series(["7", "07", "é", "e\u0301", "x" * 1_000_000]), 0)
    assert twins.n_unique() == 5


def test_buckets_are_the_hash_modulo_their_number_with_the_next_seed_second():
    ids = [f"id-{n}" for n in range(500)]
    first, second = tail_buckets(pl.Series(ids), buckets=37, hashes=2, seed=17)
    for found, seed in ((first, 17), (second, 18)):
        expected = [1 + xxhash.xxh3_64_intdigest(i.encode(), seed=seed) % 37 for i in ids]
        assert found.to_list() == expected


def test_finer_parts_nest_in_coarser_ones_and_need_a_power_of_two():
    ids = pl.Series([f"u{n}" for n in range(1000)])
    coarse, fine = partition_of(ids, 4).to_list(), partition_of(ids, 16).to_list()
    assert [part // 4 for part in fine] == coarse
    assert set(coarse) == {0, 1, 2, 3}
    assert set(partition_of(ids, 1).to_list()) == {0}
    with pytest.raises(ValueError, match="power of two"):
        partition_of(ids, 3)


@pytest.mark.parametrize(("rows", "parts"), [(0, 1), (100, 1), (101, 2), (400, 4), (401, 8)])
def test_number_of_parts_follows_from_the_rows(rows, parts):
    assert parts_for(rows, 100) == parts
