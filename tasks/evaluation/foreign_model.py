"""Measuring a model of another run on this run's test users, by raw IDs.

The champion has its own corpus and vocabularies. Today's users are encoded by those, with the
history and the seen items that serving would have given them; items that the champion does not
know cannot be recommended by it, and count as missed when they are targets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from torch import Tensor

from models.jagged import Jagged
from tasks.evaluation.measurement import translate, translation
from tasks.longtail.columns import to_arrow
from tasks.longtail.example_inputs import gather_inputs
from tasks.longtail.features import FeaturePlan
from tasks.longtail.side_tables import newest_rows
from tasks.run_spec import RunSpec
from tasks.serving.by_id import RecommenderById
from tasks.serving.fallback import top_k


def foreign_top_k(
    spec: RunSpec, model: RecommenderById, test: pa.Table, item_ids: pa.Array, k: int
) -> tuple[Tensor, Tensor]:
    """Recommendations of a model of another run for this run's test users.

    Args:
        spec: This run.
        model: The other run's model.
        test: This run's test users, as the examples hold them.
        item_ids: Raw IDs of this run's corpus, by index.
        k: Items wanted.

    Returns:
        Items as indices of this run's corpus int64 `[U, k]`, where items that this corpus does
        not have get numbers from its size on, and scores `[U, k]`.
    """
    to_model = translation(item_ids, model.item_ids)
    known = len(model.item_ids)
    table = model.encode(
        test.column("user_id").combine_chunks(),
        history=_translated(test.column("history"), to_model, known),
        seen=_translated(test.column("seen"), to_model, known),
        attributes=_attributes(spec, model, test.column("user_id").combine_chunks()),
    )
    recommender = model.recommender
    indices, scores, _ = top_k(recommender, recommender.inputs(table), k)
    return translate(indices, translation(model.item_ids, item_ids)), scores


def _translated(
    column: pa.ChunkedArray, mapping: npt.NDArray[np.int64], known: int
) -> pa.ListArray:
    """Lists of indices in another corpus, without the items that it does not have."""
    rows = Jagged.from_arrow(column)
    values = mapping[rows.values.numpy()]
    kept = values < known
    lengths = np.bincount(rows.row_ids().numpy()[kept], minlength=len(rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[kept].astype(np.int32)))


def _attributes(spec: RunSpec, model: RecommenderById, user_ids: pa.Array) -> dict[str, pa.Array]:
    """Raw values of the user attributes that the model reads, as the examples take them."""
    trained = model.recommender.bundle.trained
    tables = spec.config.tables
    plans = [
        FeaturePlan(f.name, f.table, f.kind == "list", "attribute", f.name)
        for f in (trained.model.user.features if trained is not None else ())
        if f.kind != "history" and f.table in tables and tables[f.table].dataset == "users"
    ]
    if not plans:
        return {}
    newest = newest_rows(spec.lake(), "users", gather_inputs(spec).users_before, "user_id", plans)
    users = pl.DataFrame({"user_id": pl.from_arrow(user_ids)}).cast(
        {"user_id": newest.schema["user_id"]}
    )
    joined = to_arrow(users.join(newest, on="user_id", how="left", maintain_order="left"))
    return {plan.name: joined.column(plan.column).combine_chunks() for plan in plans}
