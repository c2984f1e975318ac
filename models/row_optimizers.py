"""Optimizers of single rows of a table: only rows that a step touched move.

They are what FBGEMM's fused optimizers compute inside the backward pass of a sharded table, for
tables that lie whole on a rank.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from models.config import OptimizerSettings

ACCUMULATOR = "accumulator"
"""Name of Adagrad's state."""
_BETAS = (0.9, 0.999)


class RowOptimizer(Protocol):
    """State of the rows of one table."""

    state: dict[str, Tensor]
    """Tensors that a checkpoint keeps, by name."""

    def step(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """What to subtract from rows, before the learning rate.

        Args:
            rows: Row numbers without repetition, int64 `[U]`.
            gradient: Their gradients, float32 `[U, D]`.

        Returns:
            `[U, D]`.
        """

    def decay(self, factor: float) -> None:
        """Multiplies Adagrad's accumulators by a factor; others have none."""


def row_optimizer(
    settings: OptimizerSettings, weight: Tensor, accumulator: Tensor | None = None
) -> RowOptimizer:
    """The optimizer that the settings ask for.

    Args:
        settings: The optimizers.
        weight: The table `[rows, dim]`.
        accumulator: Memory for Adagrad's accumulators, `[rows]` or `[rows, dim]`; by default new.
    """
    rows, dim = weight.shape
    if settings.sparse == "sgd":
        return _Sgd()
    if settings.sparse == "adam":
        return _Adam(rows, dim, settings.eps, weight.device)
    width = 1 if settings.sparse == "rowwise_adagrad" else dim
    if accumulator is None:
        accumulator = torch.zeros(rows, width, device=weight.device)
    return _Adagrad(accumulator.view(rows, width), settings.eps)


def move_rows(weight: Tensor, rows: Tensor, step: Tensor, rate: float) -> None:
    """Subtracts a step times a learning rate from rows, in float32 whatever the table's type.

    Args:
        weight: The table `[rows, dim]`.
        rows: Row numbers without repetition, int64 `[U]`.
        step: `[U, dim]`.
        rate: Learning rate.
    """
    if weight.dtype == step.dtype:
        weight.index_add_(0, rows, step, alpha=-rate)
        return
    moved = weight.index_select(0, rows).to(step.dtype).sub_(step, alpha=rate)
    weight.index_copy_(0, rows, moved.to(weight.dtype))


class _Sgd:
    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def step(self, rows: Tensor, gradient: Tensor) -> Tensor:
        return gradient

    def decay(self, factor: float) -> None:
        pass


class _Adagrad:
    """Adagrad; with a width of 1 row-wise: a row's accumulator is the mean of squared gradients.

    Source of the row-wise form: Gupta et al., "Training recommender systems at scale", 2020.
    """

    def __init__(self, accumulator: Tensor, eps: float) -> None:
        self.state = {ACCUMULATOR: accumulator}
        self._eps = eps

    def step(self, rows: Tensor, gradient: Tensor) -> Tensor:
        accumulator = self.state[ACCUMULATOR]
        square = gradient.square()
        if accumulator.shape[1] == 1:
            square = square.mean(1, keepdim=True)
        sums = accumulator.index_select(0, rows).add_(square)
        accumulator.index_copy_(0, rows, sums)
        return gradient / sums.sqrt_().add_(self._eps)

    def decay(self, factor: float) -> None:
        self.state[ACCUMULATOR].mul_(factor)


class _Adam:
    """Lazy Adam: moments of untouched rows stay, the bias correction counts all steps."""

    def __init__(self, rows: int, dim: int, eps: float, device: torch.device) -> None:
        self.state = {
            "mean": torch.zeros(rows, dim, device=device),
            "square": torch.zeros(rows, dim, device=device),
            "steps": torch.zeros((), dtype=torch.int64, device=device),
        }
        self._eps = eps

    def step(self, rows: Tensor, gradient: Tensor) -> Tensor:
        self.state["steps"] += 1
        steps = int(self.state["steps"])
        mean = self.state["mean"].index_select(0, rows).lerp_(gradient, 1 - _BETAS[0])
        square = self.state["square"].index_select(0, rows)
        square.lerp_(gradient.square(), 1 - _BETAS[1])
        self.state["mean"].index_copy_(0, rows, mean)
        self.state["square"].index_copy_(0, rows, square)
        root = (square / (1 - _BETAS[1] ** steps)).sqrt_() + self._eps
        return mean / (1 - _BETAS[0] ** steps) / root

    def decay(self, factor: float) -> None:
        pass
