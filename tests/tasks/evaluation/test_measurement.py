"""Protects: the per-user rows hold enough to recompute every number, slices included, and items
that only one of two corpora has are neither mixed up nor counted."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from models.jagged import Jagged
from tasks.evaluation.measurement import (
    TestSet,
    coverage,
    measure,
    recall_by_frequency,
    recall_curve,
    translate,
    translation,
)
from tasks.evaluation.per_user import aggregates, metrics_of, rows_of


@pytest.fixture
def tests() -> TestSet:
    # Item 0 and 1: head, 2: torso, 3: tail, 4: new.
    return TestSet(
        user_ids=pa.array(["a", "b", "c"]),
        targets=Jagged.from_lists([[0, 3], [4], [2, 3, 4]]),
        user_train_count=np.array([5, 0, 2]),
        item_train_count=np.array([20, 9, 4, 1, 0]),
        slices=np.array([0, 0, 1, 2, 3], dtype=np.int8),
    )


# a finds 0 in place 1 and 3 in place 3; b finds 4 in place 2; c finds nothing and has one item
# from outside the corpus.
INDICES = torch.tensor([[0, 1, 3], [2, 4, -1], [0, 1, 7]])


def test_rows_hold_hits_and_targets_of_every_slice(tests: TestSet) -> None:
    rows = measure("m", INDICES, tests, [2, 3]).to_pydict()
    assert rows["user_id"] == ["a", "b", "c"]
    assert rows["n_targets"] == [2, 1, 3]
    assert rows["recall_at_2"] == [0.5, 1.0, 0.0]
    assert rows["recall_at_3"] == [1.0, 1.0, 0.0]
    assert rows["hits_at_3"] == [2, 1, 0]
    assert rows["mrr_at_3"] == [1.0, 0.5, 0.0]
    # a: gains in places 1 and 3 of an ideal 1 and 2.
    ideal = 1 + 1 / math.log2(3)
    assert rows["ndcg_at_3"][0] == pytest.approx((1 + 1 / math.log2(4)) / ideal)
    assert rows["targets_tail"] == [1, 0, 1]
    assert rows["hits_at_2_tail"] == [0, 0, 0]
    assert rows["hits_at_3_tail"] == [1, 0, 0]
    assert rows["targets_new"] == [0, 1, 1]
    assert rows["hits_at_3_new"] == [0, 1, 0]


def test_slices_are_recomputed_from_the_rows(tests: TestSet) -> None:
    rows = measure("m", INDICES, tests, [2, 3])
    metrics = metrics_of(rows)
    np.testing.assert_equal(metrics["recall_at_3/tail"], [1.0, np.nan, 0.0])
    np.testing.assert_equal(metrics["recall_at_3/torso"], [np.nan, np.nan, 0.0])
    np.testing.assert_equal(metrics["recall_at_3/new_users"], [np.nan, 1.0, np.nan])
    means = aggregates(rows)
    assert means["recall_at_3"] == pytest.approx(2 / 3)
    assert means["recall_at_3/head"] == 1.0
    assert means["recall_at_3/tail"] == 0.5
    assert means["recall_at_2/tail"] == 0.0


def test_a_part_that_applies_to_nobody_has_no_mean() -> None:
    alone = TestSet(
        user_ids=pa.array([1]),
        targets=Jagged.from_lists([[0]]),
        user_train_count=np.array([3]),
        item_train_count=np.array([3]),
        slices=np.array([0], dtype=np.int8),
    )
    means = aggregates(measure("m", torch.tensor([[0]]), alone, [1]))
    assert means["recall_at_1/head"] == 1.0
    assert "recall_at_1/tail" not in means
    assert "recall_at_1/new_users" not in means


def test_coverage_counts_items_of_the_corpus_only() -> None:
    # Items 0, 1, 2, 3, 4 of 5 in the top 3; 7 is outside, -1 is none.
    assert coverage(INDICES, 5, [1, 3]) == {"coverage_at_1": 2 / 5, "coverage_at_3": 5 / 5}


def test_the_curve_grows_to_the_full_width(tests: TestSet) -> None:
    # k = 1: a finds one of two; k = 2: b, too; k = 3: a finds both.
    expected = {1: 0.5 / 3, 2: 1.5 / 3, 3: 2 / 3}
    assert recall_curve(INDICES, tests.targets) == pytest.approx(expected)


def test_frequency_bins_add_up(tests: TestSet) -> None:
    bins = recall_by_frequency(INDICES, tests, 3)
    by_start = {b["from"]: b for b in bins}
    assert by_start[0] == {"from": 0, "items": 1, "targets": 2, "hits": 1}  # item 4
    assert by_start[1] == {"from": 1, "items": 1, "targets": 2, "hits": 1}  # item 3
    assert by_start[4] == {"from": 4, "items": 1, "targets": 1, "hits": 0}  # item 2
    assert by_start[16] == {"from": 16, "items": 1, "targets": 1, "hits": 1}  # item 0
    assert sum(b["targets"] for b in bins) == 6
    assert sum(b["items"] for b in bins) == 5


def test_translation_keeps_strangers_apart() -> None:
    mapping = translation(pa.array(["x", "b", "a", "y"]), pa.array(["a", "b", "c"]))
    assert mapping.tolist() == [3, 1, 0, 6]
    moved = translate(torch.tensor([[2, 0, -1], [3, 1, 2]]), mapping)
    assert moved.tolist() == [[0, 3, -1], [6, 1, 0]]


def test_translation_joins_ids_of_different_integer_types() -> None:
    mapping = translation(pa.array([5, 7], pa.int32()), pa.array([7, 5], pa.int64()))
    assert mapping.tolist() == [1, 0]


def test_rows_of_one_model(tests: TestSet) -> None:
    both = pa.concat_tables([measure(name, INDICES, tests, [3]) for name in ("m", "n")])
    assert rows_of(both, "n").num_rows == 3
    assert rows_of(both, "o").num_rows == 0
