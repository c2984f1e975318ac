"""Recommendations as people and programs want them: items with titles, and how IDs are embedded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from models.config import Settings
from tasks.serving.by_id import ITEM_SOURCE, USER_SOURCE, Origin, RecommenderById
from tasks.serving.item_filter import RawId, Where

Embedding = Literal["own row", "shared bucket", "not used"]


class RecommendedItem(Settings):
    """One recommendation."""

    item_id: str | int
    """Raw ID."""
    title: str | None
    """Title, where the items table has one."""
    score: float
    """Inner product of the towers; the train count where the answer is from popularity."""
    train_count: int
    """Interactions that the model was trained on."""
    embedding: Embedding
    """Whether the ID owns a row of the embedding table."""


class Recommendations(Settings):
    """Recommendations for one user."""

    model: str
    """Which model answered."""
    user_id: str | int | None
    """The user."""
    known_user: bool
    """Whether the user was in the training data."""
    embedding: Embedding
    """Whether the user's ID owns a row of the embedding table."""
    origin: Origin
    """What the answer was made from: the `user`'s own data, the given `history`, or
    `popularity`."""
    unknown_history: tuple[RawId, ...] = ()
    """Items of the given history that the model does not know."""
    unknown_candidates: int = 0
    """How many of the given candidates the model does not know."""
    items: tuple[RecommendedItem, ...]
    """Best first."""


class DescribedRecommender:
    """Answers with a model, and says what is known about each item.

    Args:
        model: The model.
        name: What it is called in the answers.
    """

    def __init__(self, model: RecommenderById, name: str) -> None:
        self.model = model
        self.name = name
        corpus = model.recommender.corpus
        self._items_own = model.owns_row(ITEM_SOURCE, model.item_ids)
        self._counts = corpus.column("train_count")
        self._titles = corpus.column("title") if "title" in corpus.column_names else None

    def recommend(
        self,
        user_id: RawId | None = None,
        k: int = 10,
        *,
        history: Sequence[RawId] | None = None,
        attributes: Mapping[str, RawId | Sequence[RawId] | None] | None = None,
        exclude_seen: bool = True,
        candidates: Sequence[RawId] | None = None,
        where: Where | None = None,
    ) -> Recommendations:
        """The best items for a user; arguments as those of `RecommenderById.answer`."""
        model = self.model
        answer = model.answer(
            user_id,
            k,
            history=history,
            attributes=attributes,
            exclude_seen=exclude_seen,
            candidates=candidates,
            where=where,
        )
        user_owns = None if user_id is None else model.owns_row(USER_SOURCE, pa.array([user_id]))
        given = list(history or ())
        return Recommendations(
            model=self.name,
            user_id=user_id,
            known_user=answer.known_user,
            embedding=_embedding(user_owns, 0),
            origin=answer.origin,
            unknown_history=tuple(
                item for item, n in zip(given, model.items_of(given), strict=True) if n < 0
            ),
            unknown_candidates=answer.unknown_candidates,
            items=tuple(
                RecommendedItem(
                    item_id=item,
                    title=self.title(index),
                    score=score,
                    train_count=self._counts[index].as_py(),
                    embedding=_embedding(self._items_own, index),
                )
                for item, index, score in zip(
                    answer.items, answer.indices, answer.scores, strict=True
                )
            ),
        )

    def find_items(self, query: str, limit: int) -> list[tuple[RawId, str | None, int]]:
        """Items by a part of their title, in any case, or by their ID; the most taken first.

        Args:
            query: What to look for; empty for all items.
            limit: How many at most.

        Returns:
            ID, title and train count of each.
        """
        ids = self.model.item_ids
        rows = [row for row in self.model.items_of([query]) if row >= 0] if query else []
        if self._titles is not None:
            found = pc.match_substring(self._titles, query, ignore_case=True)
            # The corpus is ordered by train count.
            rows += pc.indices_nonzero(found.fill_null(False)).slice(0, limit).to_pylist()
        elif not query:
            rows = list(range(min(limit, len(ids))))
        return [
            (ids[row].as_py(), self.title(row), self._counts[row].as_py())
            for row in list(dict.fromkeys(rows))[:limit]
        ]

    def title(self, index: int) -> str | None:
        """Title of an item by its index in the corpus."""
        return None if self._titles is None else self._titles[index].as_py()


def _embedding(owns: list[bool] | None, place: int) -> Embedding:
    if owns is None:
        return "not used"
    return "own row" if owns[place] else "shared bucket"
