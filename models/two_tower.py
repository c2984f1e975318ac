"""The two-tower model: a user tower and an item tower with a common vector space."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from models.config import EmbeddingTableSettings, ModelSettings
from models.jagged import Jagged
from models.towers import Tower


class TwoTower(nn.Module):
    """Both towers, without embedding tables (see `models/towers.py`).

    The parameters depend on the seed only, not on the number of ranks or on what else drew
    random numbers before.

    Args:
        model: The model.
        tables: Embedding tables by name.
        hashes: Codes of one element, by table.
        seed: Seed of the initial weights.
        recompute: Whether activations inside a tower are computed again in the backward pass
            instead of kept.
        layers: Type that the layers compute in; None for that of their weights.
    """

    def __init__(
        self,
        model: ModelSettings,
        tables: Mapping[str, EmbeddingTableSettings],
        hashes: Mapping[str, int],
        seed: int,
        recompute: bool = False,
        layers: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        normalise = model.similarity == "cosine"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.user = Tower(model.user, tables, hashes, model.dim, normalise, recompute, layers)
            self.item = Tower(model.item, tables, hashes, model.dim, normalise, recompute, layers)

    def user_vectors(self, rows: Mapping[str, Tensor], codes: Mapping[str, Jagged]) -> Tensor:
        """User vectors `[B, dim]`; arguments as in `Tower.forward`."""
        vectors: Tensor = self.user(rows, codes)
        return vectors

    def item_vectors(self, rows: Mapping[str, Tensor], codes: Mapping[str, Jagged]) -> Tensor:
        """Item vectors `[B, dim]`; arguments as in `Tower.forward`."""
        vectors: Tensor = self.item(rows, codes)
        return vectors
