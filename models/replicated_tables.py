"""Small embedding tables of which every rank holds a copy (`sharding: data_parallel`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from models import collectives
from models.config import EmbeddingTableSettings, OptimizerSettings
from models.initial import initial_rows
from models.row_optimizers import RowOptimizer, move_rows, row_optimizer
from models.table_parts import TablePart

_TYPES = {"fp32": torch.float32, "fp16": torch.float16}


class ReplicatedTables:
    """Tables with the same rows on every rank; the gradient of a whole table is exchanged.

    The optimizers are those of the sharded tables, applied to touched rows.

    Args:
        tables: Settings by name.
        rows: Rows by table.
        optimizer: Which optimizer, learning rate and eps.
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
        self.optimizers: dict[str, RowOptimizer] = {
            name: row_optimizer(optimizer, weight) for name, weight in self.weights.items()
        }
        """Optimizer of each table."""
        self._learning_rate = optimizer.learning_rate * optimizer.sparse_lr_scale
        self._factor = 1.0

    def set_rate(self, factor: float) -> None:
        """From now on learns at `factor` times the learning rate."""
        self._factor = factor

    def fetch(self, unique: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of every table, float32 `[len(unique), dim]`."""
        return {n: w.index_select(0, unique[n]).float() for n, w in self.weights.items()}

    @torch.no_grad()
    def update(self, unique: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """One optimizer step with the sum of all ranks' gradients of fetched rows."""
        for name, weight in self.weights.items():
            rows, gradient = _exchanged(unique[name], gradients[name], len(weight))
            step = self.optimizers[name].step(rows, gradient)
            move_rows(weight, rows, step, self._learning_rate * self._factor)

    def parts(self) -> Iterator[TablePart]:
        """The tables, with their optimizer state, sharing its memory."""
        for name, weight in self.weights.items():
            yield TablePart(name, weight, 0, 0, self.optimizers[name].state)

    @torch.no_grad()
    def decay_accumulators(self, factor: float) -> None:
        """Multiplies Adagrad's accumulators by a factor."""
        for optimizer in self.optimizers.values():
            optimizer.decay(factor)


def _exchanged(unique: Tensor, gradient: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Rows that any rank touched, and the sum of the ranks' gradients of them."""
    if collectives.world_size() == 1:
        return unique, gradient
    # The last column says which rows were touched.
    whole = gradient.new_zeros(rows, gradient.shape[1] + 1)
    whole[unique, :-1] = gradient
    whole[unique, -1] = 1.0
    whole = collectives.total(whole)
    touched = whole[:, -1].nonzero().flatten()
    return touched, whole[touched, :-1]
