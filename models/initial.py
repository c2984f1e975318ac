"""Initial embedding rows: a function of the seed, the table's name and the row alone."""

from __future__ import annotations

import torch
from torch import Tensor

from models.seeds import generator_for

_BLOCK = 1 << 14
INITIAL_STD = 0.1


def initial_rows(table: str, dim: int, seed: int, start: int, stop: int) -> Tensor:
    """Initial values of rows `start` to `stop`, float32 `[stop - start, dim]`.

    Rows are drawn block by block, each block with a generator of its own, so that every way of
    spreading a table over ranks starts from the same values. Row 0, the padding row, is zero.

    Args:
        table: Name of the table.
        dim: Width of a row.
        seed: Seed of the training.
        start: First row.
        stop: Row after the last.
    """
    rows = torch.empty(stop - start, dim)
    for block in range(start // _BLOCK, -(-stop // _BLOCK)):
        first = block * _BLOCK
        drawn = torch.empty(_BLOCK, dim).normal_(
            std=INITIAL_STD, generator=generator_for(seed, table, block)
        )
        low, high = max(start, first), min(stop, first + _BLOCK)
        rows[low - start : high - start] = drawn[low - first : high - first]
    if start == 0 and stop > 0:
        rows[0] = 0.0
    return rows
