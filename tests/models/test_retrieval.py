"""Protects retrieval: blocked top-K equals sorting all scores, ties and seen items included."""

from __future__ import annotations

import pytest
import torch

from models.jagged import Jagged
from models.retrieval import among, top_k
from models.stored_rows import StoredRows


def _brute_force(
    users: torch.Tensor, items: torch.Tensor, k: int, seen: list[list[int]]
) -> list[list[int]]:
    result = []
    for user, hidden in zip(users, seen, strict=True):
        scores = {i: float(user @ item) for i, item in enumerate(items) if i not in hidden}
        best = sorted(scores, key=lambda i: (-scores[i], i))[:k]
        result.append(best + [-1] * (k - len(best)))
    return result


@pytest.mark.parametrize("item_block", [1, 4, 7, 100])
@pytest.mark.parametrize("user_block", [1, 3, 100])
@pytest.mark.parametrize("k", [1, 5, 25])
def test_equals_brute_force(item_block: int, user_block: int, k: int) -> None:
    generator = torch.Generator().manual_seed(1)
    # Small integers make exact scores and many ties.
    users = torch.randint(-2, 3, (8, 3), generator=generator).float()
    items = torch.randint(-2, 3, (20, 3), generator=generator).float()
    seen = [[], [0, 1, 2], [19], list(range(20)), [3], [], [5, 6], list(range(18))]
    indices, scores = top_k(
        users,
        items,
        k,
        Jagged.from_lists(seen),
        user_block=user_block,
        item_block=item_block,
    )
    assert indices.tolist() == _brute_force(users, items, k, seen)
    found = indices >= 0
    assert torch.equal(scores == -torch.inf, ~found)
    rows, columns = found.nonzero(as_tuple=True)
    expected = (users[rows] * items[indices[rows, columns]]).sum(1)
    assert torch.equal(scores[found], expected)


def test_without_users_or_items() -> None:
    indices, scores = top_k(torch.zeros(0, 3), torch.zeros(4, 3), 2)
    assert indices.shape == scores.shape == (0, 2)
    indices, _ = top_k(torch.zeros(3, 2), torch.zeros(0, 2), 2)
    assert indices.tolist() == [[-1, -1]] * 3


@pytest.mark.parametrize("users", [1, 3])
def test_many_items_are_sorted_as_a_stable_sort_does(users: int) -> None:
    """Wide enough to look at groups of scores first; whole numbers make many ties."""
    generator = torch.Generator().manual_seed(4)
    vectors = torch.randint(-3, 4, (users, 4), generator=generator).float()
    items = torch.randint(-9, 10, (5003, 4), generator=generator).float()
    items[4990:] *= 2  # behind the last whole group
    seen = Jagged.from_lists([[0, 4999, 5002]] * users)
    for k in (1, 2, 9):
        found, scores = top_k(vectors, items, k, seen)
        every = vectors @ items.T
        every[:, [0, 4999, 5002]] = -torch.inf
        wanted = every.sort(dim=1, descending=True, stable=True)
        assert torch.equal(found, wanted.indices[:, :k])
        assert torch.equal(scores, wanted.values[:, :k])


def test_some_items_are_searched_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(5)
    users, items = torch.randn(4, 8, generator=generator), torch.randn(300, 8, generator=generator)
    chosen = torch.arange(3, 300, 7)
    seen = Jagged.from_lists([[3, 4, 10], [], [299, 297], list(range(0, 300, 2))])
    for rows in (StoredRows.of(items), StoredRows.of(items, "int8")):
        monkeypatch.setattr("models.retrieval._MADE_ROWS", 5)
        found, scores = among(users, rows, chosen, 6, seen)
        every = users @ rows[:].T
        hidden = torch.full_like(every, -torch.inf)
        hidden[:, chosen] = every[:, chosen]
        hidden[seen.row_ids(), seen.values] = -torch.inf
        wanted = hidden.sort(dim=1, descending=True, stable=True)
        assert torch.equal(found, wanted.indices[:, :6])
        torch.testing.assert_close(scores, wanted.values[:, :6])
    nothing, _ = among(users, rows, chosen[:0], 2, seen)
    assert nothing.tolist() == [[-1, -1]] * 4
