"""Measuring a model of another run on this run's test users, by raw IDs.

The champion has its own corpus and vocabularies. Today's users are encoded by those, with the
history and the seen items that serving would have given them; items that the champion does not
know cannot be recommended by it, and count as missed when they are targets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch import Tensor

from models.jagged import Jagged
from tasks.evaluation.attributes import user_attributes
from tasks.evaluation.measurement import translate, translation
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
    user_ids = test.column("user_id").combine_chunks()
    trained = model.recommender.bundle.trained
    features = trained.model.user.features if trained is not None else ()
    table = model.encode(
        user_ids,
        history=_translated(test.column("history"), to_model, known),
        seen=_translated(test.column("seen"), to_model, known),
        attributes=user_attributes(spec, features, user_ids),
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
