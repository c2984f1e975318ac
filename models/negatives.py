"""Draws negatives in constant time; `models/alias_table.py` builds the tables."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from models.alias_table import AliasTable
from models.errors import ExamplesError
from models.storage import read_parquet


class AliasSampler:
    """Draws item indices from an alias table.

    Args:
        table: The distribution.
    """

    def __init__(self, table: AliasTable) -> None:
        self._prob = torch.from_numpy(table.prob.astype(np.float32))
        self._alias = torch.from_numpy(table.alias.astype(np.int64))
        self.log_q = torch.from_numpy(table.log_q.astype(np.float32))

    @classmethod
    def from_parquet(cls, location: str, num_items: int) -> AliasSampler:
        """Reads the table that the examples step wrote.

        Raises:
            ExamplesError: The file does not hold a distribution over `num_items` items.
        """
        table = read_parquet(location, ["prob", "alias", "log_q"])
        if table.num_rows != num_items:
            raise ExamplesError(
                f"{table.num_rows} rows in the table of negatives for {num_items} items", location
            )
        prob, alias, log_q = (table.column(n).to_numpy() for n in ("prob", "alias", "log_q"))
        if num_items and not (alias.min() >= 0 and alias.max() < num_items):
            raise ExamplesError("an alias outside the corpus", location)
        return cls(AliasTable(prob, alias, log_q))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` independent draws, int64 `[n]`."""
        slots = torch.randint(self._prob.numel(), (n,), generator=generator)
        keep = torch.rand(n, generator=generator) < self._prob[slots]
        return torch.where(keep, slots, self._alias[slots])
