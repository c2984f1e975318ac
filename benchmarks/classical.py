"""Methods without towers that the literature compares with, on a matrix of who took what.

Each takes the train matrix (users × items, 1 where a user took an item) and gives the best items
of every user that are not in it, as `top_k` of the product does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from scipy.sparse.linalg import svds
from torch import Tensor

from models.jagged import Jagged
from models.retrieval import top_k

Matrix: TypeAlias = sparse.csr_matrix
_BLOCK = 512


def matrix_of(seen: Jagged, items: int) -> Matrix:
    """Train matrix of users' distinct train items, float32 `[U, I]`."""
    ones = np.ones(seen.values.numel(), dtype=np.float32)
    shape = (len(seen), items)
    return sparse.csr_matrix((ones, seen.values.numpy(), seen.offsets.numpy()), shape=shape)


def best_of(scores: Callable[[slice], npt.NDArray[Any]], train: Matrix, k: int) -> Tensor:
    """The `k` best items of each user that are not in the train matrix, int64 `[U, k]`.

    Args:
        scores: Scores of some users, dense `[b, I]`.
        train: Train matrix.
        k: Items wanted.
    """
    found = []
    for block in _blocks(train.shape[0]):
        part = torch.from_numpy(np.ascontiguousarray(scores(block), dtype=np.float32))
        part[train[block].nonzero()] = -torch.inf
        found.append(torch.topk(part, k, dim=1).indices)
    return torch.cat(found)


def popularity(train: Matrix, k: int) -> Tensor:
    """The items that most users took."""
    return by_weight(np.asarray(train.sum(0)).ravel(), train, k)


def by_weight(weight: npt.NDArray[Any], train: Matrix, k: int) -> Tensor:
    """The items of the largest weight, for everybody."""
    return best_of(lambda block: np.tile(weight, (_length(block, train), 1)), train, k)


def item_knn(train: Matrix, k: int, neighbours: int = 200) -> Tensor:
    """Items whose takers are those of the user's items: cosines, the nearest of each item only."""
    norms = np.sqrt(np.maximum(np.asarray(train.sum(0)).ravel(), 1.0))
    columns = (train @ sparse.diags_array(1.0 / norms)).tocsc().astype(np.float32)
    kept = []
    for block in _blocks(train.shape[1]):
        near = (columns[:, block].T @ columns).toarray()
        near[np.arange(len(near)), np.arange(block.start, block.start + len(near))] = 0.0
        if neighbours < near.shape[1]:
            least = np.partition(near, -neighbours, axis=1)[:, -neighbours]
            near[near < least[:, None]] = 0.0
        kept.append(sparse.csr_matrix(near))
    nearest = sparse.vstack(kept).tocsr()
    return best_of(lambda block: (train[block] @ nearest.T).toarray(), train, k)


def ease(train: Matrix, k: int, strength: float) -> Tensor:
    """Linear autoencoder without self-similarity (Steck, WWW 2019), exact.

    With `P` the inverse of `XᵀX + λ`, the prediction is `X - X P / diag(P)`. The products are
    formed from the inverse of the smaller `K = X Xᵀ + λ`: `X P = K⁻¹ X`, and
    `diag(P) = (1 - diag(Xᵀ K⁻¹ X)) / λ`.

    Args:
        train: Train matrix.
        k: Items wanted.
        strength: λ, the ridge regularisation.
    """
    square = torch.from_numpy((train @ train.T).toarray())
    square.diagonal().add_(strength)
    # Of these squares of all users, no more than two are in memory at a time.
    square = torch.linalg.cholesky(square)
    inverse = torch.cholesky_inverse(square).numpy()
    del square
    columns = train.tocsc()
    diagonal = np.empty(train.shape[1], dtype=np.float32)
    for block in _blocks(train.shape[1]):
        some = columns[:, block]
        product = (some.T @ inverse).T
        diagonal[block] = (1.0 - np.asarray(some.multiply(product).sum(0)).ravel()) / strength
    return best_of(lambda block: -((columns.T @ inverse[:, block]).T / diagonal), train, k)


def ials(
    train: Matrix, k: int, *, dim: int, weight: float, strength: float, sweeps: int, seed: int
) -> Tensor:
    """Factorisation of all cells by alternating least squares, from the library `implicit`.

    Source: Hu, Koren and Volinsky, "Collaborative filtering for implicit feedback datasets", 2008.

    Args:
        train: Train matrix.
        k: Items wanted.
        dim: Width of the vectors.
        weight: How much more a 1 counts than a 0.
        strength: Ridge regularisation.
        sweeps: Rounds over users and items.
        seed: Seed of the initial vectors.
    """
    try:
        from implicit.als import AlternatingLeastSquares
    except ImportError as error:
        raise SystemExit(
            "iALS needs the library implicit: pip install 'tailtower[benchmarks]'"
        ) from error
    model = AlternatingLeastSquares(
        factors=dim,
        alpha=weight,
        regularization=strength,
        iterations=sweeps,
        random_state=seed,
        num_threads=1,
        use_gpu=False,
    )
    model.fit(train, show_progress=False)
    users, items = torch.from_numpy(model.user_factors), torch.from_numpy(model.item_factors)
    return top_k(users, items, k, _rows_of(train))[0]


def graph_filter(train: Matrix, k: int, rank: int = 256, ideal: float = 0.3) -> Tensor:
    """GF-CF: a linear and an ideal low-pass filter of the item graph (Shen et al., CIKM 2021)."""
    of_user, of_item = (
        np.maximum(np.asarray(train.sum(axis)).ravel(), 1.0) ** -0.5 for axis in (1, 0)
    )
    scaled = (sparse.diags_array(of_user) @ train @ sparse.diags_array(of_item)).tocsr()
    _, _, basis = svds(scaled, k=min(rank, min(train.shape) - 1), random_state=0)

    def scores(block: slice) -> npt.NDArray[Any]:
        own = train[block]
        linear = ((own @ scaled.T) @ scaled).toarray()
        smooth = (own @ (of_item[:, None] * basis.T)) @ basis / of_item
        return np.asarray(linear + ideal * smooth)

    return best_of(scores, train, k)


def _rows_of(train: Matrix) -> Jagged:
    values, offsets = (torch.from_numpy(a.astype(np.int64)) for a in (train.indices, train.indptr))
    return Jagged(values, offsets)


def _blocks(total: int) -> Iterator[slice]:
    for start in range(0, total, _BLOCK):
        yield slice(start, min(start + _BLOCK, total))


def _length(block: slice, train: Matrix) -> int:
    return min(block.stop, train.shape[0]) - block.start
