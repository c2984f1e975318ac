"""Protects the metrics: worked examples by hand, and scikit-learn's NDCG on random rankings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from models.jagged import Jagged
from models.metrics import (
    SLICES,
    coverage,
    item_slices,
    per_user_metrics,
    slice_metrics,
    summarise,
)


def test_by_hand() -> None:
    indices = torch.tensor([[4, 7, 1], [0, 2, -1], [3, 5, 6]])
    targets = Jagged.from_lists([[7, 1, 9, 8], [2], []])
    found = per_user_metrics(indices, targets, (1, 3))
    nan = math.nan
    log = math.log2
    expected = {
        "recall_at_1": [0.0, 0.0, nan],
        "recall_at_3": [0.5, 1.0, nan],
        "hits_at_3": [2.0, 1.0, nan],
        "mrr_at_1": [0.0, 0.0, nan],
        "mrr_at_3": [0.5, 0.5, nan],
        "ndcg_at_3": [
            (1 / log(3) + 1 / log(4)) / (1 + 1 / log(3) + 1 / log(4)),
            1 / log(3),
            nan,
        ],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, err_msg=name)
    assert summarise(found)["recall_at_3"] == pytest.approx(0.75)
    only_second = np.array([False, True, True])
    assert summarise(found, only_second)["recall_at_3"] == pytest.approx(1.0)


def test_ndcg_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    items, k = 30, 7
    scores = rng.random((40, items))
    relevant = rng.random((40, items)) < 0.15
    relevant[:, 0] |= ~relevant.any(1)
    targets = Jagged.from_lists([np.flatnonzero(row).tolist() for row in relevant])
    indices = torch.from_numpy(np.argsort(-scores, axis=1)[:, :k].copy())
    found = per_user_metrics(indices, targets, (k,))
    assert summarise(found)[f"ndcg_at_{k}"] == pytest.approx(
        ndcg_score(relevant.astype(float), scores, k=k)
    )


def test_slices_by_hand() -> None:
    # 100 interactions: 0 covers 50, so 1 is the first beyond half; after 0, 1, 2 it is 80.
    count = [50, 20, 10, 10, 5, 5, 0]
    assert [SLICES[s] for s in item_slices(count)] == [
        "head", "torso", "torso", "tail", "tail", "tail", "new",
    ]  # fmt: skip
    # The order of the input does not matter.
    assert item_slices([0, 50, 50])[0] == SLICES.index("new")


def test_recall_of_a_slice_counts_only_its_targets() -> None:
    slices = item_slices([50, 20, 10, 10, 5, 5, 0])
    indices = torch.tensor([[0, 3, 6], [1, 2, 4]])
    targets = Jagged.from_lists([[0, 3, 4], [2, 6]])
    found = slice_metrics(indices, targets, slices, (2, 3))
    np.testing.assert_allclose(found["recall_at_3_head"], [1.0, np.nan])
    np.testing.assert_allclose(found["recall_at_3_tail"], [0.5, np.nan])
    np.testing.assert_allclose(found["recall_at_2_torso"], [np.nan, 1.0])
    np.testing.assert_allclose(found["recall_at_3_new"], [np.nan, 0.0])


def test_coverage_ignores_empty_places() -> None:
    indices = torch.tensor([[0, 1, 5], [1, 2, -1]])
    assert coverage(indices, 10, 2) == pytest.approx(0.3)
    assert coverage(indices, 10, 3) == pytest.approx(0.4)
