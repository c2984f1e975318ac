"""Vectors of users and items by the model as it is in the middle of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from models.batch import UserInputs
from models.config import ModelSettings, TowerSettings
from models.embedding_tables import EmbeddingTables
from models.encoder import Encoder, TowerInputs
from models.jagged import Jagged
from models.two_tower import TwoTower


class TableVectors:
    """Fetches rows of spread tables and runs the towers; see `models.validation.CurrentVectors`.

    Args:
        model: The model.
        encoder: Codes of users and items.
        towers: The towers.
        tables: The embedding tables.
    """

    def __init__(
        self, model: ModelSettings, encoder: Encoder, towers: TwoTower, tables: EmbeddingTables
    ) -> None:
        self._model = model
        self._encoder = encoder
        self._towers = towers
        self._tables = tables

    def user_vectors(self, users: UserInputs) -> Tensor:
        """Vectors of this rank's users, float32 `[U, D]`; a collective."""
        codes = self._encoder.user_codes(users)
        return self._vectors(self._model.user, codes, self._towers.user_vectors)

    def item_vectors(self, items: Tensor) -> Tensor:
        """Vectors of this rank's items by corpus index, float32 `[N, D]`; a collective."""
        codes = self._encoder.item_codes(items)
        return self._vectors(self._model.item, codes, self._towers.item_vectors)

    def _vectors(
        self,
        tower: TowerSettings,
        codes: TowerInputs,
        run: Callable[[Mapping[str, Tensor], Mapping[str, Jagged]], Tensor],
    ) -> Tensor:
        uses: dict[str, list[str]] = {name: [] for name in self._tables.names}
        for f in tower.coded:
            uses[f.table].append(f.name)
        unique = {}
        for table, names in uses.items():
            values = [codes[name].values for name in names]
            joined = torch.cat(values) if values else self._tables.no_rows
            unique[table], places = torch.unique(joined, return_inverse=True)
            for name, part in zip(
                names, torch.split(places, [len(v) for v in values]), strict=True
            ):
                codes[name] = Jagged(part, codes[name].offsets)
        return run(self._tables.fetch(unique).rows, codes)
