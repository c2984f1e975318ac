"""Parts of embedding tables, as ranks hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from models import collectives


@dataclass(frozen=True)
class TablePart:
    """What one rank holds of a table in one piece; all tensors share the table's memory.

    Attributes:
        table: Name of the table.
        weight: `[H, W]`.
        first_row: Row of the whole table that the first one is.
        first_column: Likewise.
        state: Optimizer state by name, `[H]`, `[H, 1]` or `[H, W]`; or a number of the table.
    """

    table: str
    weight: Tensor
    first_row: int
    first_column: int
    state: Mapping[str, Tensor]


def whole_state(parts: Iterable[TablePart], rows: int, dim: int) -> dict[str, Tensor]:
    """Optimizer state of a whole table on the first rank (empty elsewhere); a collective.

    A table that is cut into columns has one number a row in each of them where the optimizer
    keeps one a row: their mean stands for the row.

    Args:
        parts: This rank's parts of the table.
        rows: Rows of the table.
        dim: Its width.
    """
    parts = list(parts)
    if collectives.world_size() == 1 and len(parts) == 1:
        return {name: one_number_a_row(value) for name, value in parts[0].state.items()}
    mine = [
        (p.first_row, p.first_column, {name: t.detach().cpu() for name, t in p.state.items()})
        for p in parts
    ]
    box: list[list[tuple[int, int, dict[str, Tensor]]]] = [mine]
    if collectives.world_size() > 1:
        first = collectives.rank() == 0
        gathered: list[object] | None = [None] * collectives.world_size() if first else None
        dist.gather_object(mine, gathered, dst=0)
        if not first:
            return {}
        box = gathered  # type: ignore[assignment]
    whole: dict[str, Tensor] = {}
    parts_of_row: dict[str, Tensor] = {}
    for first_row, first_column, state in (part for of_rank in box for part in of_rank):
        for name, value in state.items():
            if value.dim() == 0:
                whole[name] = value.clone()
            elif value.dim() == 2 and value.shape[1] > 1:
                place = whole.setdefault(name, torch.zeros(rows, dim))
                height, width = value.shape
                place[first_row : first_row + height, first_column : first_column + width] = value
            else:
                place = whole.setdefault(name, torch.zeros(rows))
                count = parts_of_row.setdefault(name, torch.zeros(rows))
                place[first_row : first_row + len(value)] += value.view(-1)
                count[first_row : first_row + len(value)] += 1
    for name, count in parts_of_row.items():
        whole[name] /= count.clamp(min=1)
    return whole


def one_number_a_row(state: Tensor) -> Tensor:
    """State `[H, 1]` as `[H]`; other shapes stay."""
    return state.view(-1) if state.dim() == 2 and state.shape[1] == 1 else state
