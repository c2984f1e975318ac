"""Users about whom nothing is known get the most popular items, offline as online."""

from __future__ import annotations

import torch
from torch import Tensor

from models import popularity, retrieval
from models.batch import UserInputs, integers
from models.bundle import Recommender


def top_k(
    recommender: Recommender, users: UserInputs, k: int, *, exclude_seen: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The `k` best items of each user, from the model or from popularity.

    A tower that is fed a user without a history and without attributes answers the same vector
    for everybody; popularity is the better guess, and the one that can be explained.

    Args:
        recommender: The model.
        users: The users, U of them.
        k: Items wanted.
        exclude_seen: Whether `users.seen` is left out.

    Returns:
        Corpus indices int64 `[U, k]` and scores float32 `[U, k]`, best first, -1 and -inf where
        fewer items are left; and whether a user's answer is from popularity, bool `[U]`, with
        train counts for scores.
    """
    indices, scores = recommender.top_k(users, k, exclude_seen=exclude_seen)
    unknown = ~_known(recommender, users)
    if recommender.bundle.trained is None:
        return indices, scores, torch.ones_like(unknown)
    if bool(unknown.any()):
        rows = unknown.nonzero()[:, 0]
        seen = users.seen.select(rows) if exclude_seen and users.seen is not None else None
        counts = popularity.item_vectors(integers(recommender.corpus, "train_count"))
        everybody = popularity.user_vectors(len(rows))
        indices[rows], scores[rows] = retrieval.top_k(everybody, counts, k, seen)
    return indices, scores, unknown


def _known(recommender: Recommender, users: UserInputs) -> Tensor:
    """Users that were trained on, or have a history or an attribute; bool `[U]`."""
    known = (users.user >= 0) | (users.history.lengths > 0)
    if recommender.bundle.trained is None:
        return known
    policies = recommender.bundle.policies
    for feature in recommender.bundle.trained.model.user.features:
        # The user's ID always has a code, be it a tail bucket; an attribute has one when given.
        if str(policies.get(feature.table, {}).get("source", "")).startswith("users."):
            codes = users.features[feature.name]
            known[codes.row_ids()[codes.values > 0]] = True
    return known
