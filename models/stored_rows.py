"""Rows of numbers as they are served: in fp32, fp16, or row-wise quantised to 8 or 4 bits.

The quantised layouts and their kernels are FBGEMM's, as torch ships them: a row's codes, then its
scale and its smallest value (two fp32 numbers at 8 bits, two fp16 numbers at 4), the layout of
FBGEMM's inference kernels. Files are memory-mapped, so the processes of a host share their pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.errors import BundleError
from models.serving_settings import Precision

_ROWS = "rows"
_EXACT = "exact"


@dataclass(frozen=True)
class StoredRows:
    """N rows of `dim` numbers.

    Attributes:
        stored: The rows in their layout, `[N, columns]`; uint8 where they are quantised.
        precision: Which layout.
        dim: Numbers of a row, those of `exact` not counted.
        exact: More numbers of each row that are kept as they are, float32 `[N, E]`, or None.
    """

    stored: Tensor
    precision: Precision
    dim: int
    exact: Tensor | None = None

    @classmethod
    def of(cls, rows: Tensor, precision: Precision = "fp32", exact: int = 0) -> StoredRows:
        """Rows in another precision.

        Args:
            rows: float32 `[N, D]`.
            precision: Which one.
            exact: So many columns at the end are kept in fp32.
        """
        exact = 0 if precision == "fp32" else exact
        dim = rows.shape[1] - exact
        kept = rows[:, dim:].contiguous() if exact else None
        rows = rows[:, :dim].contiguous()
        if precision == "fp16":
            rows = rows.half()
        elif precision == "int8":
            rows = torch.ops.quantized.embedding_bag_byte_prepack(rows)
        elif precision == "int4":
            if dim % 2:  # two codes a byte; another last number says nothing new
                rows = torch.cat([rows, rows[:, -1:]], dim=1)
            rows = torch.ops.quantized.embedding_bag_4bit_prepack(rows)
        return cls(rows, precision, dim, kept)

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: slice) -> Tensor:
        """A run of rows, float32 `[M, D]`."""
        return self._numbers(self.stored[rows], None if self.exact is None else self.exact[rows])

    @property
    def ready(self) -> bool:
        """Whether a run of rows is there as it is, and need not be computed."""
        return self.precision == "fp32"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and numbers in each."""
        return len(self), self.dim + (0 if self.exact is None else self.exact.shape[1])

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return self.stored.nbytes + (0 if self.exact is None else self.exact.nbytes)

    def select(self, rows: Tensor) -> Tensor:
        """The given rows in their order, float32 `[M, D]`.

        Args:
            rows: Row numbers, int64 `[M]`.
        """
        exact = None if self.exact is None else self.exact.index_select(0, rows)
        return self._numbers(self.stored.index_select(0, rows), exact)

    def _numbers(self, stored: Tensor, exact: Tensor | None) -> Tensor:
        if self.precision == "int8":
            numbers = torch.ops.quantized.embedding_bag_byte_unpack(stored)
        elif self.precision == "int4":
            numbers = torch.ops.quantized.embedding_bag_4bit_unpack(stored)[:, : self.dim]
        else:
            numbers = stored.float()
        return numbers if exact is None else torch.cat([numbers, exact], dim=1)

    def save(self, path: Path) -> None:
        """Writes the rows to a safetensors file."""
        content = {_ROWS: self.stored.contiguous()}
        if self.exact is not None:
            content[_EXACT] = self.exact
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(content, path)

    @classmethod
    def load(cls, path: Path, precision: Precision, rows: int, dim: int) -> StoredRows:
        """Maps a file that `save` wrote into memory.

        Args:
            path: The file.
            precision: What it was written in.
            rows: Rows that it must have.
            dim: Numbers that each must have, exact ones included.

        Raises:
            BundleError: The file is damaged, or holds other rows.
        """
        try:
            content = load_file(path)
            stored, exact = content[_ROWS], content.get(_EXACT)
        except (SafetensorError, OSError, KeyError) as error:
            raise BundleError(f"{path} cannot be read: {error}") from error
        kept = 0 if exact is None else exact.shape[1]
        found = cls(stored, precision, dim - kept, exact)
        if stored.dtype != _TYPES[precision] or stored.shape != (rows, found._columns()):
            raise BundleError(
                f"{path} holds {stored.dtype} {tuple(stored.shape)}, which are not {rows} rows of "
                f"{dim} numbers in {precision}"
            )
        return found

    def _columns(self) -> int:
        if self.precision == "int8":
            return self.dim + 8
        if self.precision == "int4":
            return (self.dim + 1) // 2 + 4
        return self.dim


_TYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "int8": torch.uint8,
    "int4": torch.uint8,
}
