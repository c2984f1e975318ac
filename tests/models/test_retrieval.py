"""Protects retrieval: blocked top-K equals sorting all scores, ties and seen items included."""

from __future__ import annotations

import pytest
import torch

from models.jagged import Jagged
from models.retrieval import top_k


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
