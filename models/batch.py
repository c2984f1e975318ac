"""Training examples and users as tensors, made from Arrow tables without loops over rows.

Columns of a file of training examples: `user` int64 (dense index of the user), `item` int32
(index in the corpus), `history` list<int32> (corpus indices of the user's last items before the
event, oldest first), `weight` float32, for each `id` or `list` feature of the user tower a column
of codes, list<int32>, and for each `numeric` feature a column of numbers, null where there is none.
Files of users (test, serving) have the same columns without `item` and `weight`, and may have
`seen` list<int32> (corpus indices to leave out of recommendations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from models.config import ModelSettings
from models.jagged import Jagged


def user_columns(model: ModelSettings) -> list[str]:
    """Columns that the user tower reads from a file of examples or users."""
    return [
        "user",
        *(f.name for f in model.user.features if f.kind != "history"),
        *(["history"] if has_history(model) else []),
    ]


def has_history(model: ModelSettings) -> bool:
    """Whether the user tower reads the user's last items."""
    return any(f.kind == "history" for f in model.user.features)


@dataclass(frozen=True)
class UserInputs:
    """What the user tower is told about U users.

    Attributes:
        user: Index among the train users, -1 for others; int64 `[U]`.
        features: Codes of each `id` and `list` feature, by name; U rows each.
        history: Corpus indices of the last items, oldest first; U rows.
        seen: Corpus indices to leave out of recommendations; U rows, or None.
        numeric: Raw values of each `numeric` feature, by name, float64 `[U]`; NaN for none.
    """

    user: Tensor
    features: Mapping[str, Jagged]
    history: Jagged
    seen: Jagged | None = None
    numeric: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.user.numel()

    @classmethod
    def from_arrow(cls, table: pa.Table, model: ModelSettings | None) -> UserInputs:
        """Users of a table with the columns named above.

        Args:
            table: The table.
            model: Says which columns are read; None for `user` and `seen` only.

        Raises:
            ValueError: A column is missing, has another type, or holds nulls.
        """
        features = (
            {}
            if model is None
            else {f.name: _jagged(table, f.name) for f in model.user.coded if f.kind != "history"}
        )
        if model is not None and has_history(model):
            history = _jagged(table, "history")
        else:
            history = Jagged(
                torch.zeros(0, dtype=torch.int64),
                torch.zeros(table.num_rows + 1, dtype=torch.int64),
            )
        seen = _jagged(table, "seen") if "seen" in table.column_names else None
        names = [] if model is None else [f.name for f in model.user.numeric]
        numeric = {name: numbers(table, name) for name in names}
        return cls(integers(table, "user"), features, history, seen, numeric)

    def slice(self, start: int, stop: int) -> UserInputs:
        """Users `start` to `stop`."""
        return UserInputs(
            self.user[start:stop],
            {name: codes.slice(start, stop) for name, codes in self.features.items()},
            self.history.slice(start, stop),
            None if self.seen is None else self.seen.slice(start, stop),
            {name: values[start:stop] for name, values in self.numeric.items()},
        )

    def to(self, device: torch.device) -> UserInputs:
        """The same users on a device."""
        return self.moved(lambda x: x.to(device, non_blocking=True))

    def moved(self, move: Callable[[Tensor], Tensor]) -> UserInputs:
        """The same users with every tensor replaced by what `move` makes of it."""
        return UserInputs(
            move(self.user),
            {name: codes.moved(move) for name, codes in self.features.items()},
            self.history.moved(move),
            None if self.seen is None else self.seen.moved(move),
            {name: move(values) for name, values in self.numeric.items()},
        )


@dataclass(frozen=True)
class Batch:
    """One rank's examples of a micro-batch.

    Attributes:
        users: The users, B of them.
        item: Corpus index of the item of each interaction, int64 `[B]`.
        weight: Weight of each example, float32 `[B]`.
    """

    users: UserInputs
    item: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return self.item.numel()

    @classmethod
    def from_arrow(cls, table: pa.Table, model: ModelSettings) -> Batch:
        """Examples of a table with the columns named above.

        Raises:
            ValueError: A column is missing, has another type, or holds nulls.
        """
        users = UserInputs.from_arrow(table, model)
        return cls(users, integers(table, "item"), floats(table, "weight"))

    def slice(self, start: int, stop: int) -> Batch:
        """Examples `start` to `stop`."""
        return Batch(self.users.slice(start, stop), self.item[start:stop], self.weight[start:stop])

    def to(self, device: torch.device) -> Batch:
        """The same examples on a device."""
        return self.moved(lambda x: x.to(device, non_blocking=True))

    def moved(self, move: Callable[[Tensor], Tensor]) -> Batch:
        """The same examples with every tensor replaced by what `move` makes of it."""
        return Batch(self.users.moved(move), move(self.item), move(self.weight))


def integers(table: pa.Table, name: str) -> Tensor:
    """An integer column without nulls, int64 `[N]`.

    Raises:
        ValueError: The column is missing, has another type, or holds nulls.
    """
    column = _column(table, name)
    if not pa.types.is_integer(column.type):
        raise ValueError(f"column '{name}': integers are needed, not {column.type}")
    return torch.from_numpy(column.to_numpy().astype(np.int64))


def numbers(table: pa.Table, name: str) -> Tensor:
    """A column of numbers, float64 `[N]`; NaN where there is none.

    Raises:
        ValueError: The column is missing, holds no numbers, or one that is not finite.
    """
    if name not in table.column_names:
        raise ValueError(f"no column '{name}'")
    column = table.column(name)
    known = pa.types.is_null(column.type) or pa.types.is_boolean(column.type)
    if not (known or pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise ValueError(f"column '{name}': numbers are needed, not {column.type}")
    present = column.is_valid().to_numpy(zero_copy_only=False)
    values = np.full(len(column), np.nan)
    values[present] = column.drop_null().cast(pa.float64()).to_numpy()
    wrong = np.flatnonzero(present & ~np.isfinite(values))
    if wrong.size:
        row = int(wrong[0])
        raise ValueError(f"column '{name}' is {column[row].as_py()} in row {row}: not finite")
    return torch.from_numpy(values)


def floats(table: pa.Table, name: str) -> Tensor:
    """A column of numbers without nulls, float32 `[N]`.

    Raises:
        ValueError: The column is missing, has another type, or holds nulls.
    """
    column = _column(table, name)
    if not pa.types.is_floating(column.type):
        raise ValueError(f"column '{name}': floating point is needed, not {column.type}")
    return torch.from_numpy(column.to_numpy().astype(np.float32))


def _jagged(table: pa.Table, name: str) -> Jagged:
    try:
        return Jagged.from_arrow(_column(table, name))
    except ValueError as error:
        raise ValueError(f"column '{name}': {error}") from error


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise ValueError(f"no column '{name}'")
    column = table.column(name)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"column '{name}' is null in row {row}")
    return column
