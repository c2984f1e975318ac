"""Small embedding tables of which every rank holds a copy (`sharding: data_parallel`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models import collectives
from models.config import EmbeddingTableSettings, OptimizerSettings
from models.initial import initial_rows

_TYPES = {"fp32": torch.float32, "fp16": torch.float16}


class ReplicatedTables:
    """Tables with the same rows on every rank; the gradient of a whole table is exchanged.

    The optimizer is row-wise Adagrad, as in the sharded tables: one accumulator a row, the mean
    of the squared gradient (Gupta et al., "Training recommender systems at scale", 2020).

    Args:
        tables: Settings by name.
        rows: Rows by table.
        optimizer: Learning rate and eps.
        seed: Seed of the initial rows.
        device: This rank's device.
    """

    def __init__(
        self,
        tables: Mapping[str, EmbeddingTableSettings],
        rows: Mapping[str, int],
        optimizer: OptimizerSettings,
        seed: int,
        device: torch.device,
    ) -> None:
        self.weights = {
            name: initial_rows(name, table.dim, seed, 0, rows[name]).to(device, _TYPES[table.dtype])
            for name, table in tables.items()
        }
        """Weights `[rows, dim]` by table."""
        self.accumulators = {name: torch.zeros(rows[name], device=device) for name in tables}
        """Sum of the mean squared gradients of each row `[rows]`, by table."""
        self._learning_rate = optimizer.learning_rate * optimizer.sparse_lr_scale
        self._eps = optimizer.eps

    def fetch(self, unique: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of every table, float32 `[len(unique), dim]`."""
        return {name: weight[unique[name]].float() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, unique: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """One optimizer step with the sum of all ranks' gradients of fetched rows."""
        for name, weight in self.weights.items():
            gradient = torch.zeros(weight.shape, device=weight.device)
            gradient.index_copy_(0, unique[name], gradients[name])
            gradient = collectives.total(gradient)
            accumulator = self.accumulators[name]
            accumulator += gradient.square().mean(1)
            step = gradient / (accumulator.sqrt() + self._eps)[:, None]
            weight.sub_(step * self._learning_rate)
