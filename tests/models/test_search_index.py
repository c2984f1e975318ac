"""Protects the approximate search: with all lists it is the exact one, seen items stay out, a user
whose lists hold too little is searched exactly, and a damaged file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models import retrieval
from models.errors import BundleError
from models.jagged import Jagged
from models.search_index import SearchIndex
from models.stored_rows import StoredRows

pytest.importorskip("faiss")

ITEMS, DIM, K = 2000, 16, 10


@pytest.fixture(scope="module")
def items() -> torch.Tensor:
    return torch.randn(ITEMS, DIM, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def users() -> torch.Tensor:
    return torch.randn(20, DIM, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def index(items: torch.Tensor) -> SearchIndex:
    return SearchIndex.build(items)


def _with_probes(index: SearchIndex, probes: int) -> SearchIndex:
    return SearchIndex(index._index, probes)


@pytest.mark.parametrize("hidden", [False, True])
def test_all_lists_find_what_the_exact_search_finds(
    items: torch.Tensor, users: torch.Tensor, index: SearchIndex, hidden: bool
) -> None:
    best = (users @ items.T).argsort(dim=1, descending=True)
    seen = Jagged.from_lists([row[: n % 4].tolist() for n, row in enumerate(best)])
    every = _with_probes(index, index.lists)
    rows = StoredRows.of(items)
    found, scores = retrieval.approximate_top_k(users, rows, K, every, seen if hidden else None)
    wanted, exact = retrieval.top_k(users, items, K, seen if hidden else None)
    assert torch.equal(found, wanted)
    torch.testing.assert_close(scores, exact)


def test_one_list_finds_a_part_with_true_scores(
    items: torch.Tensor, users: torch.Tensor, index: SearchIndex
) -> None:
    found, scores = retrieval.approximate_top_k(users, StoredRows.of(items), K, index)
    for user, row, values in zip(users, found, scores, strict=True):
        torch.testing.assert_close(values, items[row] @ user)
        assert len(set(row.tolist())) == K
    assert values.tolist() == sorted(values.tolist(), reverse=True)


def test_too_few_in_the_lists_means_the_exact_search(
    items: torch.Tensor, users: torch.Tensor, index: SearchIndex
) -> None:
    k = 500  # ten times what a list holds
    found, scores = retrieval.approximate_top_k(users, StoredRows.of(items), k, index)
    wanted, exact = retrieval.top_k(users, items, k)
    assert torch.equal(found, wanted)
    torch.testing.assert_close(scores, exact)
    found, scores = retrieval.approximate_top_k(users, StoredRows.of(items), ITEMS + 5, index)
    assert found[:, ITEMS:].tolist() == [[-1] * 5] * len(users)


def test_a_file_answers_the_same_and_a_damaged_one_is_refused(
    items: torch.Tensor, users: torch.Tensor, index: SearchIndex, tmp_path: Path
) -> None:
    path = tmp_path / "items.faiss"
    index.save(path)
    loaded = SearchIndex.load(path, probes=3, items=ITEMS, dim=DIM)
    rows = StoredRows.of(items)
    wanted, _ = retrieval.approximate_top_k(users, rows, K, _with_probes(index, 3))
    assert torch.equal(retrieval.approximate_top_k(users, rows, K, loaded)[0], wanted)
    with pytest.raises(BundleError, match="belongs to another model"):
        SearchIndex.load(path, probes=3, items=ITEMS + 1, dim=DIM)
    # Another file: this one is mapped, and to cut a mapped file short kills the process.
    damaged = tmp_path / "damaged.faiss"
    damaged.write_bytes(b"no index" * 100)
    with pytest.raises(BundleError, match=r"damaged\.faiss cannot be read"):
        SearchIndex.load(damaged, probes=3, items=ITEMS, dim=DIM)
