"""Which rows of an earlier table the rows of a new one start from.

A row of the new table is a weighted sum of rows of the old one. The file, made from both
vocabularies, has one line for each term, ordered by `new_row`: `new_row` int32, `old_row` int32,
`weight` float32 (factor of the old row's weights) and `state` float32 (factor of its optimizer
state). A row without a line has no past: it starts as in a new model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.errors import WarmStartError
from models.storage import read_parquet

_BLOCK = 1 << 15  # new rows that are put together at a time


@dataclass(frozen=True)
class RowMoves:
    """The terms of a table.

    Attributes:
        new_row: Row of the new table, ascending, int64 `[M]`.
        old_row: Row of the old table, int64 `[M]`.
        weight: Factor for weights, float32 `[M]`.
        state: Factor for optimizer state, float32 `[M]`.
    """

    new_row: Tensor
    old_row: Tensor
    weight: Tensor
    state: Tensor

    @classmethod
    def from_parquet(cls, location: str, new_rows: int, old_rows: int) -> RowMoves:
        """Reads the file.

        Args:
            location: Path or URL.
            new_rows: Rows of the new table.
            old_rows: Rows of the old table.

        Raises:
            WarmStartError: A row lies outside its table, or the lines are not in order.
        """
        table = read_parquet(location, ["new_row", "old_row", "weight", "state"])
        new, old = (table.column(n).to_numpy().astype(np.int64) for n in ("new_row", "old_row"))
        outside = (new < 1) | (new >= new_rows) | (old < 1) | (old >= old_rows)
        if outside.any() or (np.diff(new) < 0).any():
            raise WarmStartError(f"{location} does not fit tables of {new_rows}, {old_rows} rows")
        factors = [table.column(n).to_numpy().astype(np.float32) for n in ("weight", "state")]
        return cls(*(torch.from_numpy(column) for column in (new, old, *factors)))

    def move_weights(self, target: Tensor, first: int, source: Tensor) -> None:
        """Overwrites the rows of a part of the new table that have a past.

        Args:
            target: Rows `first` and after of the new table, `[H, W]`.
            first: Number of the first one.
            source: The old table, `[old rows, W]`.
        """
        self._move(target, first, source, self.weight)

    def move_state(self, target: Tensor, first: int, source: Tensor) -> None:
        """The same for optimizer state; the first dimension of both is the row."""
        self._move(target, first, source, self.state)

    @torch.no_grad()
    def _move(self, target: Tensor, first: int, source: Tensor, factor: Tensor) -> None:
        for low in range(0, len(target), _BLOCK):
            high = min(low + _BLOCK, len(target))
            bounds = torch.tensor([first + low, first + high])
            start, stop = torch.searchsorted(self.new_row, bounds).tolist()
            if start == stop:
                continue
            place = self.new_row[start:stop] - (first + low)
            # In float32 whatever the table's type; one term of weight 1 stays what it is.
            terms = source[self.old_row[start:stop]].float()
            terms *= factor[start:stop].view(-1, *[1] * (terms.dim() - 1))
            sums = torch.zeros(high - low, *terms.shape[1:]).index_add_(0, place, terms)
            moved = torch.unique_consecutive(place)
            part = sums[moved].to(target.device, target.dtype)
            target[(low + moved).to(target.device)] = part.view(-1, *target.shape[1:])
