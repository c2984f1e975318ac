"""Users about whom nothing is known get the most popular items, offline as online."""

from __future__ import annotations

import torch
from torch import Tensor

from models import retrieval
from models.batch import UserInputs
from models.bundle import Recommender
from models.jagged import Jagged

_USER_BLOCK = 4096


def top_k(
    recommender: Recommender,
    users: UserInputs,
    k: int,
    *,
    exclude_seen: bool = True,
    among: Tensor | None = None,
    exact: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The `k` best items of each user, from the model or from popularity.

    A tower that is fed a user without a history and without attributes answers the same vector
    for everybody; popularity is the better guess, and the one that can be explained.

    Args:
        recommender: The model.
        users: The users, U of them.
        k: Items wanted.
        exclude_seen: Whether `users.seen` is left out.
        among: Corpus indices, ascending, of the items that count, int64 `[N]`; all by default.
        exact: Whether every item is scored where the bundle has an index, too.

    Returns:
        Corpus indices int64 `[U, k]` and scores float32 `[U, k]`, best first, -1 and -inf where
        fewer items are left; and whether a user's answer is from popularity, bool `[U]`, with
        train counts for scores.
    """
    unknown = ~_known(recommender, users)
    indices, scores = torch.empty(len(users), k, dtype=torch.int64), torch.empty(len(users), k)
    counts = recommender.train_count
    for rows, popular in ((unknown.nonzero()[:, 0], True), ((~unknown).nonzero()[:, 0], False)):
        if not len(rows):
            continue
        some = users if len(rows) == len(users) else _select(users, rows)
        seen = some.seen if exclude_seen else None
        if not popular:
            indices[rows], scores[rows] = recommender.top_k(
                some, k, exclude_seen, among=among, exact=exact
            )
        elif among is None:
            indices[rows], scores[rows] = most_popular(counts, len(rows), k, seen)
        else:
            hidden = None if seen is None else retrieval.places_among(among, seen)
            places, scores[rows] = most_popular(counts[among], len(rows), k, hidden)
            indices[rows] = retrieval.named(among, places)
    return indices, scores, unknown


def most_popular(
    train_count: Tensor, users: int, k: int, seen: Jagged | None
) -> tuple[Tensor, Tensor]:
    """The `k` items with the most train interactions that a user has not seen.

    The corpus is ordered by train count, so nothing is scored: the first items that are left
    are the best, equal counts in the order of the corpus.

    Args:
        train_count: Train interactions of each item, descending, int64 `[I]`.
        users: Number of users.
        k: Items wanted.
        seen: Items to leave out, one row for each user.

    Returns:
        Indices int64 `[U, k]` and train counts float32 `[U, k]`; -1 and -inf where fewer are left.
    """
    items = len(train_count)
    indices = torch.full((users, k), -1, dtype=torch.int64)
    scores = torch.full((users, k), -torch.inf)
    for start in range(0, users, _USER_BLOCK):
        stop = min(start + _USER_BLOCK, users)
        hidden = None if seen is None else seen.slice(start, stop)
        most = 0 if hidden is None or not len(hidden.values) else int(hidden.lengths.max())
        width = min(items, k + most)
        left = torch.ones(stop - start, width, dtype=torch.bool)
        if hidden is not None:
            inside = hidden.values < width
            left[hidden.row_ids()[inside], hidden.values[inside]] = False
        place = left.cumsum(1) - 1
        rows, columns = (left & (place < k)).nonzero(as_tuple=True)
        indices[start + rows, place[rows, columns]] = columns
        scores[start + rows, place[rows, columns]] = train_count[columns].float()
    return indices, scores


def _select(users: UserInputs, rows: Tensor) -> UserInputs:
    return UserInputs(
        users.user[rows],
        {name: codes.select(rows) for name, codes in users.features.items()},
        users.history.select(rows),
        None if users.seen is None else users.seen.select(rows),
        {name: values[rows] for name, values in users.numeric.items()},
    )


def _known(recommender: Recommender, users: UserInputs) -> Tensor:
    """Users that the model knows: trained on, or with a history or an attribute; bool `[U]`."""
    known = (users.user >= 0) | (users.history.lengths > 0)
    if recommender.bundle.trained is None:
        return torch.zeros_like(known)
    policies = recommender.bundle.policies
    for values in users.numeric.values():
        known |= ~values.isnan()
    for feature in recommender.bundle.trained.model.user.coded:
        # The user's ID always has a code, be it a tail bucket; an attribute has one when given.
        if str(policies.get(feature.table, {}).get("source", "")).startswith("users."):
            codes = users.features[feature.name]
            known[codes.row_ids()[codes.values > 0]] = True
    return known
