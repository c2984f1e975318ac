"""Item vectors of recent draws, kept as further negatives (cross-batch memory).

Source: Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020; for retrieval with
sampling correction: Wang et al., "Cross-Batch Negative Sampling for Training Two-Tower
Recommenders", SIGIR 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor


class VectorBank:
    """The latest draws, first in, first out; every rank has the same.

    Args:
        capacity: Draws that are kept.
        dim: Width of a vector.
        device: Where they are kept.
    """

    def __init__(self, capacity: int, dim: int, device: torch.device) -> None:
        self._item = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._log_weight = torch.zeros(capacity, device=device)
        self._vector = torch.zeros(capacity, dim, device=device)
        # A tensor, because a checkpoint keeps it.
        self._pushed = torch.zeros((), dtype=torch.int64)

    def __len__(self) -> int:
        return min(int(self._pushed), self._item.numel())

    def push(self, item: Tensor, log_weight: Tensor, vector: Tensor) -> None:
        """Keeps draws; the oldest make room.

        Args:
            item: Corpus indices, int64 `[N]`.
            log_weight: Logs of the weights of the draws `[N]`.
            vector: Their vectors `[N, D]`.
        """
        capacity, count = self._item.numel(), item.numel()
        kept = min(count, capacity)
        places = (torch.arange(kept, device=item.device) + int(self._pushed)) % capacity
        self._item[places] = item[count - kept :]
        self._log_weight[places] = log_weight[count - kept :]
        self._vector[places] = vector[count - kept :].detach().float()
        self._pushed += kept

    def draws(self) -> tuple[Tensor, Tensor, Tensor]:
        """Items, logs of weights and vectors of what is kept, oldest first."""
        capacity, size, pushed = self._item.numel(), len(self), int(self._pushed)
        places = (torch.arange(size, device=self._item.device) + pushed - size) % capacity
        return self._item[places], self._log_weight[places], self._vector[places]

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, sharing its memory."""
        return {
            "item": self._item,
            "log_weight": self._log_weight,
            "vector": self._vector,
            "pushed": self._pushed,
        }
