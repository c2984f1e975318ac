"""The MLflow model: raw IDs in, items and scores out. MLflow runs this file when it loads it.

Columns of the input: `user_id`, or `history` (the user's last items, oldest first), or both, and
the user's attributes where the model reads any.
Columns of the answer: `item_id` and `score` (lists, best first), `origin` (`user`, `history` or
`popularity`: what the answer was made from) and `unknown` (how many IDs of the user, the history
and the candidates the model does not know). Params: `k`, `exclude_seen`, `candidates` (IDs of the
items that may be answered) and `where` (`attribute=value` of the items).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from tasks.serving.by_id import RecommenderById, attributes_of
from tasks.serving.item_filter import parse_where


class TailtowerModel(PythonModel):
    """Recommends with the bundle among the model's artifacts."""

    def load_context(self, context: PythonModelContext) -> None:
        """Opens the bundle; its digests are checked."""
        self._model = RecommenderById(context.artifacts["bundle"])
        self._attributes = tuple(attributes_of(self._model.recommender.bundle))

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """One row of recommendations for each row of the input."""
        settings = params or {}
        candidates = [*settings.get("candidates", ())]
        where = parse_where([*settings.get("where", ())])
        rows = model_input.to_dict("records")
        answers = [
            self._model.answer(
                _value(row, "user_id"),
                int(settings.get("k", 10)),
                history=_value(row, "history"),
                attributes=self._given(row),
                exclude_seen=bool(settings.get("exclude_seen", True)),
                candidates=candidates or None,
                where=where,
            )
            for row in rows
        ]
        return pd.DataFrame(
            {
                "item_id": [answer.items for answer in answers],
                "score": [answer.scores for answer in answers],
                "origin": [answer.origin for answer in answers],
                "unknown": [
                    self._unknown(row) + answer.unknown_candidates
                    for row, answer in zip(rows, answers, strict=True)
                ],
            }
        )

    def _unknown(self, row: Mapping[Hashable, Any]) -> int:
        """IDs of the user and the history that the model does not know."""
        user = _value(row, "user_id")
        items = self._model.items_of(_value(row, "history") or [])
        return int(user is not None and self._model.row_of(user) is None) + items.count(-1)

    def _given(self, row: Mapping[Hashable, Any]) -> dict[str, Any]:
        """Attributes that the request has; for the others the bundle's knowledge stands."""
        values = {name: _value(row, name) for name in self._attributes}
        return {name: value for name, value in values.items() if value is not None}


def _value(row: Mapping[Hashable, Any], name: str) -> Any:
    """A value of the input; pandas writes missing ones as NaN."""
    value = row.get(name)
    if value is None or (not hasattr(value, "__len__") and bool(pd.isna(value))):
        return None
    if isinstance(value, str) or not hasattr(value, "__len__"):
        return value.item() if hasattr(value, "item") else value
    return list(value)


mlflow.models.set_model(TailtowerModel())
