"""The methods beside the towers, against their definitions on dense matrices in float64."""

import numpy as np
import pytest
import torch

from benchmarks import classical
from models.jagged import Jagged

K = 5


@pytest.fixture(scope="module")
def train():
    rng = np.random.default_rng(2)
    dense = rng.random((40, 30)) < 0.2
    dense[:, 0] = True
    dense[3] = False
    offsets = np.append(0, np.cumsum(dense.sum(1)))
    rows = Jagged(torch.from_numpy(np.nonzero(dense)[1]), torch.from_numpy(offsets))
    return classical.matrix_of(rows, 30)


def best(scores, train):
    dense = train.toarray() > 0
    return np.argsort(-np.where(dense, -np.inf, scores), axis=1, kind="stable")[:, :K]


def same(found, scores, train):
    """Whether the scores of what was found are the highest, whatever the order of equals."""
    wanted = np.take_along_axis(scores, best(scores, train), 1)
    np.testing.assert_allclose(np.take_along_axis(scores, found.numpy(), 1), wanted, atol=1e-5)
    assert not (train.toarray()[np.arange(40)[:, None], found.numpy()] > 0).any()


def test_popularity(train):
    count = train.toarray().sum(0)
    same(classical.popularity(train, K), np.tile(count, (40, 1)), train)


def test_ease_equals_its_inverse(train):
    x = train.toarray().astype(np.float64)
    inverse = np.linalg.inv(x.T @ x + 3.0 * np.eye(30))
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    same(classical.ease(train, K, strength=3.0), x @ weights, train)


def test_item_knn_keeps_the_nearest(train):
    x = train.toarray().astype(np.float64)
    unit = x / np.sqrt(np.maximum(x.sum(0), 1))
    near = unit.T @ unit
    np.fill_diagonal(near, 0.0)
    for row in near:
        row[row < np.sort(row)[-4]] = 0.0
    same(classical.item_knn(train, K, neighbours=4), x @ near.T, train)


def test_graph_filter_is_the_closed_form(train):
    x = train.toarray().astype(np.float64)
    users, items = np.maximum(x.sum(1), 1) ** -0.5, np.maximum(x.sum(0), 1) ** -0.5
    scaled = users[:, None] * x * items
    basis = np.linalg.svd(scaled)[2][:6]
    scores = x @ scaled.T @ scaled + 0.3 * ((x * items) @ basis.T @ basis) / items
    same(classical.graph_filter(train, K, rank=6), scores, train)
