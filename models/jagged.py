"""Ragged rows as two flat tensors, with the few operations that training needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor


@dataclass(frozen=True)
class Jagged:
    """N rows of any length.

    Attributes:
        values: Elements of all rows, row after row, `[V]`.
        offsets: Row `i` is `values[offsets[i]:offsets[i + 1]]`; int64 `[N + 1]`, starts at 0.
    """

    values: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @property
    def lengths(self) -> Tensor:
        """Elements of each row, int64 `[N]`."""
        return self.offsets.diff()

    def row_ids(self) -> Tensor:
        """Row of every element, int64 `[V]`."""
        rows = torch.arange(len(self), device=self.offsets.device)
        return torch.repeat_interleave(rows, self.lengths, output_size=self.values.numel())

    def select(self, rows: Tensor) -> Jagged:
        """The given rows, in that order and as often as they are named.

        Args:
            rows: Row numbers `[M]`.
        """
        lengths = self.lengths[rows]
        offsets = _offsets_of(lengths)
        total = int(offsets[-1])
        shift = torch.repeat_interleave(
            self.offsets[:-1][rows] - offsets[:-1], lengths, output_size=total
        )
        return Jagged(self.values[shift + torch.arange(total, device=shift.device)], offsets)

    def slice(self, start: int, stop: int) -> Jagged:
        """Rows `start` to `stop`, without a copy of the values."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Jagged(self.values[first:last], offsets - first)

    def last(self, n: int) -> Jagged:
        """The last `n` elements of each row, or all where there are fewer."""
        lengths = self.lengths
        kept = lengths.clamp(max=n)
        if bool((kept == lengths).all()):
            return self
        offsets = _offsets_of(kept)
        total = int(offsets[-1])
        shift = torch.repeat_interleave(
            self.offsets[1:] - kept - offsets[:-1], kept, output_size=total
        )
        return Jagged(self.values[shift + torch.arange(total, device=shift.device)], offsets)

    def to(self, device: torch.device) -> Jagged:
        """The same rows on a device."""
        return self.moved(lambda x: x.to(device, non_blocking=True))

    def moved(self, move: Callable[[Tensor], Tensor]) -> Jagged:
        """The same rows with both tensors replaced by what `move` makes of them."""
        return Jagged(move(self.values), move(self.offsets))

    @staticmethod
    def concat(parts: Sequence[Jagged]) -> Jagged:
        """All rows of the parts, part after part."""
        lengths = torch.cat([part.lengths for part in parts])
        return Jagged(torch.cat([part.values for part in parts]), _offsets_of(lengths))

    @staticmethod
    def from_lists(rows: Sequence[Sequence[int]]) -> Jagged:
        """Rows given as Python lists (small data only)."""
        values = torch.tensor([v for row in rows for v in row], dtype=torch.int64)
        return Jagged(values, _offsets_of(torch.tensor([len(r) for r in rows], dtype=torch.int64)))

    @staticmethod
    def from_arrow(column: pa.ChunkedArray | pa.Array) -> Jagged:
        """A list column of integers without nulls.

        Raises:
            ValueError: The column is not a list of integers, or holds nulls.
        """
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
            raise ValueError(f"a list column is needed, not {array.type}")
        elements = array.flatten()
        if array.null_count or elements.null_count:
            raise ValueError("a list column must not hold nulls")
        if not pa.types.is_integer(elements.type):
            raise ValueError(f"a list of integers is needed, not {array.type}")
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        values = elements.to_numpy(zero_copy_only=False).astype(np.int64)
        return Jagged(torch.from_numpy(values), torch.from_numpy(offsets - offsets[:1]))


def _offsets_of(lengths: Tensor) -> Tensor:
    offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets
