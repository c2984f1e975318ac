"""The item corpus and the distributions that negatives are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from models.config import RECENT_COUNT
from tasks.errors import DataError
from tasks.longtail.columns import array_of, to_arrow
from tasks.longtail.encoding import Encoder
from tasks.longtail.events import RECENT_UNIT
from tasks.longtail.features import FeaturePlan
from tasks.longtail.numbers import NumberColumn
from tasks.longtail.side_tables import TITLE

POPULARITY_EXPONENT = 0.75
"""Exponent of the popularity distribution (Mikolov et al., NeurIPS 2013)."""


def build_corpus(stats: Sequence[pl.DataFrame], items: pl.DataFrame | None) -> pl.DataFrame:
    """All items with a train interaction or a row in the items table.

    Args:
        stats: `item_id`, `train_count`, `train_users` and, when it is asked for, `recent_units`
            of each part of the users.
        items: The newest row of each item, or None when the model reads no attribute and the
            lake has no items.

    Returns:
        `item_id`, `title`, the statistics and the attributes, ordered by
        `train_count` descending, then `item_id`; the row number is the item's index. `id_rank` is
        the item's place in the order of the IDs.

    Raises:
        DataError: The IDs are of different types in the items and the interactions.
    """
    together = pl.concat(
        [frame.select(sorted(frame.columns)) for frame in stats], how="vertical_relaxed"
    )
    merged = together.group_by("item_id").agg(pl.all().sum())
    if items is None:
        corpus = merged.with_columns(pl.lit(None, pl.String).alias(TITLE))
    else:
        ours, theirs = merged.schema["item_id"], items.schema["item_id"]
        if theirs == pl.Null:  # no file names an item
            items, theirs = items.cast({"item_id": ours}), ours
        if ours != theirs:
            raise DataError(
                f"item_id is {ours} in raw/interactions and {theirs} in raw/items",
                fix="deliver both with one type",
            )
        counts = [name for name in merged.columns if name != "item_id"]
        corpus = merged.join(items, on="item_id", how="full", coalesce=True).with_columns(
            pl.col(counts).fill_null(0)
        )
    corpus = corpus.sort("item_id").with_row_index("id_rank")
    return corpus.sort("train_count", "item_id", descending=[True, False])


def corpus_table(
    corpus: pl.DataFrame, features: Sequence[FeaturePlan], encoders: Mapping[str, Encoder]
) -> pa.Table:
    """The corpus with each feature's codes, as it is written."""
    table = to_arrow(corpus.select("item_id", pl.col(TITLE).cast(pl.String), "train_count"))
    if "recent_units" in corpus.columns:
        recent = corpus["recent_units"].to_numpy() / RECENT_UNIT
        table = table.append_column(RECENT_COUNT, array_of(recent))
    for plan in features:
        ids = corpus["item_id" if plan.source == "key" else plan.column]
        if plan.numeric:
            table = table.append_column(plan.name, NumberColumn.of(ids).to_arrow())
            continue
        codes = encoders[plan.table].code_lists(ids, listed=plan.listed)
        table = table.append_column(plan.name, codes.to_arrow())
    return table


def negative_weights(corpus: pl.DataFrame, users: int) -> dict[str, npt.NDArray[np.float64]]:
    """Unnormalised weights of the negatives' distributions over the corpus.

    `tfidf`: train interactions × log(users / users who touched the item). `popularity`: train
    interactions to the power of 0.75. `uniform`: every item alike, also those never touched.

    Args:
        corpus: The corpus.
        users: Train users.
    """
    count = corpus["train_count"].to_numpy().astype(np.float64)
    touched = corpus["train_users"].to_numpy().astype(np.float64)
    idf = np.log(users / np.maximum(touched, 1.0))
    tfidf = count * idf
    # With every item touched by every user no item tells users apart: frequency alone is left.
    return {
        "tfidf": tfidf if tfidf.any() else count,
        "uniform": np.ones(corpus.height),
        "popularity": count**POPULARITY_EXPONENT,
    }
