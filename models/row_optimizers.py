"""Optimizers of single rows of a table: only rows that a step touched move.

They are what FBGEMM's fused optimizers compute inside the backward pass of a sharded table, for
tables of which every rank has a copy.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from models.config import OptimizerSettings

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
    settings: OptimizerSettings, rows: int, dim: int, device: torch.device
) -> RowOptimizer:
    """The optimizer that the settings ask for, for a table of `rows` rows of `dim` numbers."""
    if settings.sparse == "sgd":
        return _Sgd()
    if settings.sparse == "adam":
        return _Adam(rows, dim, settings.eps, device)
    rowwise = settings.sparse == "rowwise_adagrad"
    return _Adagrad(rows, 1 if rowwise else dim, settings.eps, device)


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

    def __init__(self, rows: int, width: int, eps: float, device: torch.device) -> None:
        self.state = {"accumulator": torch.zeros(rows, width, device=device)}
        self._eps = eps

    def step(self, rows: Tensor, gradient: Tensor) -> Tensor:
        accumulator = self.state["accumulator"]
        square = gradient.square()
        if accumulator.shape[1] == 1:
            square = square.mean(1, keepdim=True)
        sums = accumulator[rows] + square
        accumulator[rows] = sums
        return gradient / (sums.sqrt_() + self._eps)

    def decay(self, factor: float) -> None:
        self.state["accumulator"].mul_(factor)


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
        mean = self.state["mean"][rows].lerp_(gradient, 1 - _BETAS[0])
        square = self.state["square"][rows].lerp_(gradient.square(), 1 - _BETAS[1])
        self.state["mean"][rows], self.state["square"][rows] = mean, square
        root = (square / (1 - _BETAS[1] ** steps)).sqrt_() + self._eps
        return mean / (1 - _BETAS[0] ** steps) / root

    def decay(self, factor: float) -> None:
        pass
