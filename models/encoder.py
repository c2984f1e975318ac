"""From users and items to the codes that index the embedding tables.

The user tower's history and the item tower's neighbours name items by their index in the corpus;
their codes are the codes of the item tower's ID feature, so an item has the same vector everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models.batch import UserInputs
from models.config import FeatureSettings, ModelSettings
from models.corpus import FULL_ITEM_TABLE, FULL_USER_TABLE, Corpus
from models.jagged import Jagged
from models.numeric_features import Normaliser, NumericStatistics


class TowerInputs(dict[str, Jagged]):
    """Inputs of a tower: codes by feature, and numbers.

    Args:
        codes: Codes of each coded feature, by name; B rows each.
        numbers: Normalised numeric features `[B, features]`, or None.
    """

    def __init__(self, codes: Mapping[str, Jagged], numbers: Tensor | None) -> None:
        super().__init__(codes)
        self.numbers = numbers


class Encoder:
    """Codes of users and items.

    Args:
        model: The model.
        corpus: The items.
        hashes: Codes for each element, by table.
        device: Where the codes of the items are kept.
        numeric: Statistics of the numeric features, by tower and name.

    Raises:
        ValueError: An item's ID does not have exactly one element, or no ID feature has the
            table of a history or of neighbours.
    """

    def __init__(
        self,
        model: ModelSettings,
        corpus: Corpus,
        hashes: Mapping[str, int],
        device: torch.device | None = None,
        numeric: Mapping[str, Mapping[str, NumericStatistics]] | None = None,
    ) -> None:
        self._model = model
        known = numeric or {}
        user, item = (
            Normaliser([f.name for f in tower.numeric], known.get(side, {}))
            for side, tower in (("user", model.user), ("item", model.item))
        )
        self._user_numbers = user
        self._item_numbers = item(corpus.numeric)
        self._items = {
            f.name: _every_item(len(corpus))
            if f.table == FULL_ITEM_TABLE
            else corpus.features[f.name]
            for f in model.item.coded
        }
        for f in model.item.coded:
            if f.kind == "neighbours":
                matrix = self._id_matrix(f, len(corpus), hashes)
                self._items[f.name] = _codes_of(matrix, corpus.features[f.name])
        self._width = {name: _common_length(codes) for name, codes in self._items.items()}
        self._history = {
            f.table: self._id_matrix(f, len(corpus), hashes)
            for f in model.user.features
            if f.kind == "history"
        }
        if device is not None:
            self._items = {name: codes.to(device) for name, codes in self._items.items()}
            self._history = {t: matrix.to(device) for t, matrix in self._history.items()}
            if self._item_numbers is not None:
                self._item_numbers = self._item_numbers.to(device)

    def item_codes(self, items: Tensor) -> TowerInputs:
        """Codes, and numbers, of each feature of the item tower.

        Args:
            items: Corpus indices `[M]`.

        Returns:
            M rows of codes by feature.
        """
        codes = {name: self._rows(name, codes, items) for name, codes in self._items.items()}
        numbers = self._item_numbers
        return TowerInputs(codes, None if numbers is None else numbers.index_select(0, items))

    def user_codes(self, users: UserInputs) -> TowerInputs:
        """Codes, and numbers, of each feature of the user tower; one row a user."""
        codes = {}
        for f in self._model.user.coded:
            if f.kind == "history":
                items = users.history.last(f.max_length)
                codes[f.name] = _codes_of(self._history[f.table], items)
            elif f.table == FULL_USER_TABLE:
                rows = torch.arange(len(users) + 1, device=users.user.device)
                codes[f.name] = Jagged(users.user + 1, rows)
            else:
                codes[f.name] = users.features[f.name]
        return TowerInputs(codes, self._user_numbers(users.numeric))

    def _rows(self, name: str, codes: Jagged, items: Tensor) -> Jagged:
        width = self._width[name]
        if width is None:
            return codes.select(items)
        # Rows of one length, as those of an ID are, are rows of a matrix.
        offsets = torch.arange(len(items) + 1, device=items.device) * width
        return Jagged(codes.values.view(-1, width).index_select(0, items).flatten(), offsets)

    def _id_matrix(self, feature: FeatureSettings, items: int, hashes: Mapping[str, int]) -> Tensor:
        """Codes of every item's ID, int64 `[I, hashes]`."""
        for f in self._model.item.features:
            if f.kind == "id" and f.table == feature.table:
                codes, width = self._items[f.name], hashes[f.table]
                if bool((codes.lengths != width).any()):
                    raise ValueError(f"feature '{f.name}': an item without exactly one ID")
                return codes.values.view(items, width)
        raise ValueError(
            f"feature '{feature.name}': the item tower has no id feature with the table "
            f"'{feature.table}'"
        )


def _codes_of(matrix: Tensor, items: Jagged) -> Jagged:
    """Codes of lists of items, given each item's."""
    return Jagged(matrix.index_select(0, items.values).flatten(), items.offsets * matrix.shape[1])


def _every_item(count: int) -> Jagged:
    return Jagged(torch.arange(1, count + 1), torch.arange(count + 1))


def _common_length(codes: Jagged) -> int | None:
    """Length of all rows, when they have one and it is not 0."""
    lengths = codes.lengths
    if len(codes) == 0 or int(lengths[0]) == 0 or bool((lengths != lengths[0]).any()):
        return None
    return int(lengths[0])
