"""IDs to codes: owners, tail IDs, nulls and lists, against a loop over dictionaries."""

from datetime import date

import numpy as np
import polars as pl
import pytest
import xxhash

from tasks.config import VocabularySettings
from tasks.errors import DataError, LakeError
from tasks.longtail.encoding import Encoder
from tasks.longtail.vocabulary_table import Vocabulary, empty_table

DAY = date(2026, 3, 1)


def vocabulary(rows, dtype=pl.String, **policy):
    table = pl.DataFrame(
        {
            "id": pl.Series(list(rows), dtype=dtype),
            "row": pl.Series(list(rows.values()), dtype=pl.Int32),
            "count": [1.0] * len(rows),
            "last_seen": [DAY] * len(rows),
            "since": [DAY] * len(rows),
        }
    )
    return Vocabulary(VocabularySettings(**policy), table)


def bucket(text, buckets, seed):
    return 1 + xxhash.xxh3_64_intdigest(text.encode(), seed=seed) % buckets


def test_owner_tail_unseen_and_null():
    encoder = Encoder(vocabulary({"a": 9, "b": 8}, tail_buckets=7, hashes=2, seed=3), "t")
    codes = encoder.codes(pl.Series(["b", "tail", None, "a", ""]))
    assert codes.tolist() == [
        [8, 0],
        [bucket("tail", 7, 3), bucket("tail", 7, 4)],
        [0, 0],
        [9, 0],
        [bucket("", 7, 3), bucket("", 7, 4)],
    ]


def test_many_integers_against_a_dictionary():
    rng = np.random.default_rng(0)
    rows = {int(i) * 3: 11 + n for n, i in enumerate(rng.permutation(200))}
    ids = rng.integers(0, 900, 5000).tolist()
    codes = Encoder(vocabulary(rows, pl.Int64(), tail_buckets=10, seed=1), "t").codes(
        pl.Series(ids)
    )
    assert codes[:, 0].tolist() == [rows.get(i) or bucket(str(i), 10, 1) for i in ids]


def test_lists_are_flat_and_nulls_in_them_have_no_code():
    encoder = Encoder(vocabulary({"a": 9}, tail_buckets=7, hashes=2), "t")
    lists = pl.Series([["a", None, "x"], [], None, ["a"]])
    found = encoder.code_lists(lists, listed=True).to_arrow().to_pylist()
    tail = [bucket("x", 7, 17), bucket("x", 7, 18)]
    assert found == [[9, 0, *tail], [], [], [9, 0]]
    single = encoder.code_lists(pl.Series(["a", None]), listed=False).to_arrow().to_pylist()
    assert single == [[9, 0], [0, 0]]


def test_without_owners_every_id_is_in_the_tail():
    empty = Vocabulary(VocabularySettings(tail_buckets=1), empty_table(pl.String()))
    assert Encoder(empty, "t").codes(pl.Series([5, 6])).tolist() == [[1], [1]]


def test_another_type_is_refused():
    with pytest.raises(DataError, match="its vocabulary has String"):
        Encoder(vocabulary({"1": 2}), "t").codes(pl.Series([1]))


def test_a_row_outside_the_table_is_refused():
    broken = vocabulary({"a": -1})
    with pytest.raises(LakeError, match="outside"):
        Encoder(broken, "t").codes(pl.Series(["a"]))
