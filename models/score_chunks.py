"""Scores of users against columns, a chunk of users at a time, and the gradients of both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from models.candidates import Positives

_CPU_BYTES = 2 << 20  # stays in the cache, and lets products run at full speed
_DEVICE_BYTES = 256 << 20


@dataclass(frozen=True)
class Chunk:
    """Scores of some users.

    Attributes:
        part: Which users.
        users: Their vectors times the scale, `[b, D]`.
        scores: `[b, C]`, scaled; minus infinity in the own column and in known ones. It is
            overwritten by the next chunk.
        target: Score of the own column, `[b]`.
    """

    part: slice
    users: Tensor
    scores: Tensor
    target: Tensor


class ScoreChunks:
    """Goes through the users.

    Args:
        users: User vectors `[B, D]`.
        items: Vectors of the columns `[C, D]`.
        positives: Columns to leave out.
        scale: Factor of all scores.
        chunk: Users at once; by default what fits the cache, or a part of a device's memory.
    """

    def __init__(
        self, users: Tensor, items: Tensor, positives: Positives, scale: float, chunk: int | None
    ) -> None:
        self._users = users
        self._items = items
        self._positives = positives
        self._scale = scale
        limit = _CPU_BYTES if users.device.type == "cpu" else _DEVICE_BYTES
        fitting = limit // max(1, len(items) * users.element_size())
        # A product with very few rows does not reach the speed of one with more.
        self._chunk = chunk or max(32, fitting)

    def __iter__(self) -> Iterator[Chunk]:
        users, chunk = self._users, self._chunk
        scaled, columns = users * self._scale, self._items.T
        buffer = users.new_empty(min(chunk, len(users)), len(self._items))
        rows = torch.arange(len(buffer), device=users.device)
        # Where the chunks begin among the known columns; one question to the device for all.
        known = [
            (k.row_ids() % chunk, k.values, [*k.offsets[:-1:chunk].tolist(), k.values.numel()])
            for k in self._positives.known
        ]
        for number, start in enumerate(range(0, len(users), chunk)):
            part = slice(start, min(start + chunk, len(users)))
            mine = scaled[part]
            scores, own = buffer[: len(mine)], self._positives.column[part]
            torch.mm(mine, columns, out=scores)
            target = scores[rows[: len(mine)], own]
            scores[rows[: len(mine)], own] = -torch.inf
            for known_rows, values, bounds in known:
                pairs = slice(bounds[number], bounds[number + 1])
                scores[known_rows[pairs], values[pairs]] = -torch.inf
            yield Chunk(part, mine, scores, target)


class VectorGradients:
    """Adds up the gradients of users' and items' vectors, chunk by chunk.

    The derivative of a user's loss with respect to a score is a share of the user times the mass
    of the column times an entry of a matrix. Shares and masses are applied to the vectors, which
    are far smaller than the matrix.

    Args:
        users: User vectors `[B, D]`.
        items: Vectors of the columns `[C, D]`.
        mass: Mass of each column `[C]`.
        positives: Each user's own column.
        scale: Factor of all scores.
    """

    def __init__(
        self, users: Tensor, items: Tensor, mass: Tensor, positives: Positives, scale: float
    ) -> None:
        self._users = users
        self._items = items
        self._mass = mass
        self._column = positives.column
        self._scale = scale
        self._weighted = items * mass[:, None]
        self._user = torch.empty_like(users)
        self._item = torch.zeros_like(items)
        self._own = torch.empty_like(users[:, 0])

    def add(self, chunk: Chunk, derivatives: Tensor, share: Tensor, own: Tensor) -> None:
        """Adds a chunk.

        Args:
            chunk: The chunk.
            derivatives: Entries of the matrix `[b, C]`; zero where a column is left out.
            share: Of each user, `[b]`.
            own: Derivative of the loss with respect to the own item's score, `[b]`.
        """
        mine = self._user[chunk.part]
        torch.mm(derivatives, self._weighted, out=mine)
        mine *= share[:, None]
        self._item.addmm_(derivatives.T, chunk.users * share[:, None])
        self._own[chunk.part] = own

    def total(self) -> tuple[Tensor, Tensor]:
        """Gradients of the users' and of the items' vectors."""
        own = (self._own * self._scale)[:, None]
        self._user.mul_(self._scale).addcmul_(self._items[self._column], own)
        self._item.mul_(self._mass[:, None]).index_add_(0, self._column, self._users * own)
        return self._user, self._item
