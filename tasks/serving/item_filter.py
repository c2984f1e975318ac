"""Which items a request lets in: a list of IDs, values of the items' attributes, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from models.bundle import Bundle, Recommender

RawId = str | int
Where = Mapping[str, RawId | Sequence[RawId]]
"""Wanted values by attribute: every attribute must have one of its values."""


@dataclass(frozen=True)
class LetIn:
    """What a filter lets in.

    Attributes:
        items: Corpus indices, ascending, int64 `[N]`.
        unknown: How many of the named IDs the corpus does not have.
    """

    items: Tensor
    unknown: int


class _Ids(Protocol):
    """What is asked of a model about IDs; see `tasks.serving.by_id`."""

    recommender: Recommender

    def items_of(self, items: Sequence[RawId]) -> list[int]:
        """Corpus index of each item, -1 for items that the corpus does not have."""

    def row_of_id(self, table: str, value: RawId) -> int | None:
        """The row of a table that an ID owns, None for one that shares a bucket."""


def let_in(model: _Ids, candidates: Sequence[RawId] | None, where: Where | None) -> LetIn | None:
    """The items that a request lets in; None when it lets in all.

    Args:
        model: The model.
        candidates: IDs of the items that count; an empty list lets nothing in.
        where: Wanted values by attribute.

    Raises:
        ValueError: The model reads no such attribute, or its value has no row of its own, so that
            its items cannot be told from those of other values.
    """
    if candidates is None and not where:
        return None
    unknown = 0
    inside = np.ones(model.recommender.num_items, dtype=bool)
    if candidates is not None:
        indices = np.asarray(model.items_of(candidates), dtype=np.int64)
        unknown = int((indices < 0).sum())
        inside[:] = False
        inside[indices[indices >= 0]] = True
    for name, wanted in (where or {}).items():
        values = [wanted] if isinstance(wanted, str | int) else list(wanted)
        inside &= _with_value(model, name, values)
    return LetIn(torch.from_numpy(np.flatnonzero(inside)), unknown)


def filterable(bundle: Bundle) -> dict[str, str]:
    """Attributes of the items that a request may name, and the table of each."""
    features = bundle.trained.model.item.coded if bundle.trained is not None else ()
    return {
        f.name: f.table
        for f in features
        if str(bundle.policies.get(f.table, {}).get("source", "")).startswith("items.")
    }


def parse_where(conditions: Sequence[str]) -> dict[str, list[RawId]]:
    """Conditions as text: `name=value`; a name that comes twice may have either value.

    Raises:
        ValueError: A condition has no `=`.
    """
    found: dict[str, list[RawId]] = {}
    for condition in conditions:
        name, equals, value = condition.partition("=")
        if not equals or not name:
            raise ValueError(f"'{condition}' is no condition of the form attribute=value")
        found.setdefault(name, []).append(value)
    return found


def _with_value(model: _Ids, name: str, values: Sequence[RawId]) -> npt.NDArray[np.bool_]:
    tables = filterable(model.recommender.bundle)
    if name not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise ValueError(f"the items have no attribute '{name}' that the model reads: {known}")
    codes = []
    for value in values:
        row = model.row_of_id(tables[name], value)
        if row is None:
            raise ValueError(
                f"the value '{value}' of '{name}' has no row of its own: the model cannot tell its "
                "items from those of other rare values"
            )
        codes.append(row)
    column = model.recommender.corpus.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    places = np.flatnonzero(np.isin(column.flatten().to_numpy(zero_copy_only=False), codes))
    offsets = column.offsets.to_numpy(zero_copy_only=False)
    inside = np.zeros(len(column), dtype=bool)
    inside[np.searchsorted(offsets - offsets[0], places, side="right") - 1] = True
    return inside
