"""The item corpus: codes and train counts of every item, by its index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from models.batch import integers
from models.config import ModelSettings
from models.errors import ExamplesError
from models.jagged import Jagged
from models.storage import read_parquet


@dataclass(frozen=True)
class Corpus:
    """I items; the row number is an item's index.

    Attributes:
        train_count: Train interactions of each item, int64 `[I]`.
        features: Codes of each feature of the item tower, by name; I rows each.
    """

    train_count: Tensor
    features: Mapping[str, Jagged]

    def __len__(self) -> int:
        return self.train_count.numel()

    def log_share(self) -> Tensor:
        """Log of each item's share of the train interactions, float32 `[I]`; -inf without any.

        It is the probability that an in-batch negative is this item.
        """
        count = self.train_count.to(torch.float64)
        return (count / count.sum().clamp(min=1)).log().to(torch.float32)

    @classmethod
    def from_parquet(cls, location: str, model: ModelSettings) -> Corpus:
        """Reads the corpus that the examples step wrote.

        Raises:
            ExamplesError: The file is damaged, or a column is missing or of another type.
        """
        names = [f.name for f in model.item.features]
        table = read_parquet(location, ["train_count", *names])
        try:
            features = {name: Jagged.from_arrow(table.column(name)) for name in names}
            return cls(integers(table, "train_count"), features)
        except ValueError as error:
            raise ExamplesError(f"the corpus cannot be used: {error}", location) from error
