"""Protects ragged rows: gathering, cutting and reading them from Arrow equals Python lists."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.jagged import Jagged

rows_of = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8)


def as_lists(jagged: Jagged) -> list[list[int]]:
    bounds = jagged.offsets.tolist()
    values = jagged.values.tolist()
    return [values[a:b] for a, b in pairwise(bounds)]


@settings(max_examples=40, deadline=None)
@given(rows_of, st.data())
def test_select_names_rows_in_any_order_and_again(
    rows: list[list[int]], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    found = Jagged.from_lists(rows).select(torch.tensor(chosen, dtype=torch.int64))
    assert as_lists(found) == [rows[i] for i in chosen]


@settings(max_examples=40, deadline=None)
@given(rows_of, st.integers(1, 6))
def test_last_keeps_the_newest(rows: list[list[int]], n: int) -> None:
    assert as_lists(Jagged.from_lists(rows).last(n)) == [row[-n:] for row in rows]


@settings(max_examples=40, deadline=None)
@given(rows_of, rows_of)
def test_concat_and_row_ids(first: list[list[int]], second: list[list[int]]) -> None:
    joined = Jagged.concat([Jagged.from_lists(first), Jagged.from_lists(second)])
    assert as_lists(joined) == first + second
    expected = [i for i, row in enumerate(first + second) for _ in row]
    assert joined.row_ids().tolist() == expected


@settings(max_examples=40, deadline=None)
@given(rows_of, st.integers(0, 8), st.integers(0, 8))
def test_slices_of_arrow_columns(rows: list[list[int]], start: int, length: int) -> None:
    # A sliced Arrow array keeps the parent's buffers; its offsets do not start at zero.
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.int64())):
        column = pa.chunked_array([pa.array(rows, kind), pa.array(rows, kind)])
        part = Jagged.from_arrow(column.slice(start, length))
        assert as_lists(part) == (rows + rows)[start : start + length]
        assert as_lists(Jagged.from_lists(rows).slice(0, len(rows))) == rows


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1], None], pa.list_(pa.int32())), "nulls"),
        (pa.array([[1, None]], pa.list_(pa.int32())), "nulls"),
        (pa.array([[1.5]], pa.list_(pa.float32())), "list of integers"),
        (pa.array([1, 2]), "a list column is needed"),
    ],
)
def test_refuses_other_columns(column: pa.Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Jagged.from_arrow(column)
