"""What a step asks of each rank: rows to look up for all ranks, and their gradients to apply."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models import collectives
from models.memory_estimate import Placement, TableShard

_BYTES = 8  # a number there, and its gradient back


@dataclass(frozen=True)
class StepLoad:
    """The load of one step.

    Attributes:
        bytes: Bytes of rows that each rank looks up, and of gradients that it applies, for all
            ranks and itself; int64 `[ranks, tables]`, the same on every rank.
        wait: Seconds that this rank waited for the others before rows were exchanged.
    """

    bytes: Tensor
    wait: float


class Traffic:
    """Tells every rank how many rows are asked of whom.

    Args:
        placement: Where the parts of the tables are.
        rows: Rows of each table.
        names: The tables, in the order of `StepLoad.bytes`.
        device: This rank's device.
    """

    def __init__(
        self,
        placement: Placement,
        rows: Mapping[str, int],
        names: Sequence[str],
        device: torch.device,
    ) -> None:
        self._device = device
        self._rows = rows
        self._names = list(names)
        self._shards = [list(placement[name]) for name in self._names]
        ranks = collectives.world_size()
        shards = [(t, shard) for t, some in enumerate(self._shards) for shard in some]
        # Which rank, and which table, the bytes of a row of each part count for.
        self._cell = torch.tensor([s.rank * len(self._names) + t for t, s in shards])
        self._width = torch.tensor([s.columns * _BYTES for _, s in shards])
        self._shape = (ranks, len(self._names))

    def announce(self, unique: Mapping[str, Tensor]) -> tuple[int, StepLoad]:
        """Says what this rank asks for; a collective.

        Args:
            unique: Row numbers by table, without repetition.

        Returns:
            Most rows of a table that any rank asks for, and the load.
        """
        most = max(unique[name].numel() for name in self._names)
        asked = [
            _asked(unique[name], shards, self._rows[name])
            for name, shards in zip(self._names, self._shards, strict=True)
        ]
        numbers = torch.cat([torch.tensor([most], device=self._device), *asked])
        started = time.perf_counter()
        everyone = collectives.gather_numbers(numbers)
        wait = time.perf_counter() - started
        rows = everyone[:, 1:].sum(0)
        load = torch.zeros(self._shape, dtype=torch.int64)
        load.view(-1).index_add_(0, self._cell, rows * self._width)
        return int(everyone[:, 0].max()), StepLoad(load, wait)


def _asked(unique: Tensor, shards: Sequence[TableShard], rows: int) -> Tensor:
    """Rows that are asked of each part of a table."""
    if shards[0].rows == rows:
        # A part has all rows, and some or all of the columns.
        return torch.full((len(shards),), unique.numel(), device=unique.device)
    # Parts are equally high, but for the last ones.
    return torch.bincount(unique // shards[0].rows, minlength=len(shards))
