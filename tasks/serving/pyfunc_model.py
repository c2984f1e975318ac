"""The MLflow model: raw IDs in, items and scores out. MLflow runs this file when it loads it.

Columns of the input: `user_id`, or `history` (the user's last items, oldest first), or both, and
the user's attributes where the model reads any.
Columns of the answer: `item_id` and `score` (lists, best first) and `origin` (`user`, `history`
or `popularity`: what the answer was made from). Params: `k`, `exclude_seen`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from tasks.serving.by_id import RecommenderById, attributes_of


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
        answers = [
            self._model.answer(
                _value(row, "user_id"),
                int(settings.get("k", 10)),
                history=_value(row, "history"),
                attributes=self._given(row),
                exclude_seen=bool(settings.get("exclude_seen", True)),
            )
            for row in model_input.to_dict("records")
        ]
        return pd.DataFrame(
            {
                "item_id": [answer.items for answer in answers],
                "score": [answer.scores for answer in answers],
                "origin": [answer.origin for answer in answers],
            }
        )

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
