"""Examples made once more with loops and dictionaries, straight from the rows of the log."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

Row = tuple[Any, Any, Any]


class Codes:
    """Codes of a table, from the rows of its vocabulary."""

    def __init__(self, rows: Mapping[Any, int], buckets: int, hashes: int, seed: int = 17) -> None:
        self.rows, self.buckets, self.hashes, self.seed = rows, buckets, hashes, seed

    def __call__(self, key: Any) -> list[int]:
        if key is None:
            return [0] * self.hashes
        if key in self.rows:
            return [self.rows[key], *[0] * (self.hashes - 1)]
        return [
            1 + xxhash.xxh3_64_intdigest(str(key).encode(), seed=self.seed + n) % self.buckets
            for n in range(self.hashes)
        ]


@dataclass
class Reference:
    """What the examples must hold.

    `train` are rows of (user ID, item ID, time, item IDs of the history).
    """

    item_ids: list[Any]
    train_count: Counter[Any]
    train: list[tuple[Any, Any, Any, tuple[Any, ...]]]
    seen: dict[Any, set[Any]]
    last: dict[Any, list[Any]]
    targets: dict[Any, set[Any]] = field(default_factory=dict)


def reference(
    train: Sequence[Row], test: Sequence[Row], catalogue: Sequence[Any], length: int
) -> Reference:
    """Makes the examples of a log of (user, item, time)."""
    count = Counter(item for _, item, _ in train)
    items = sorted(set(count) | set(catalogue))
    items.sort(key=lambda item: -count[item])
    by_user: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
    for user, item, time in train:
        by_user[user].append((time, item))
    rows = []
    for user, item, time in train:
        past = sorted(pair for pair in by_user[user] if pair[0] < time)
        kept = tuple(i for _, i in past)[max(0, len(past) - length) :]
        rows.append((user, item, time, kept))
    seen = {user: {item for _, item in pairs} for user, pairs in by_user.items()}
    last = {
        user: [i for _, i in sorted(pairs)][max(0, len(pairs) - length) :]
        for user, pairs in by_user.items()
    }
    targets: dict[Any, set[Any]] = defaultdict(set)
    for user, item, _ in test:
        targets[user] |= {item} & (set(items) - seen.get(user, set()))
    return Reference(items, count, rows, seen, last, dict(targets))


def tfidf(train: Sequence[Row], item_ids: Sequence[Any]) -> list[float]:
    """Probability of each item: its interactions × log(users / users who touched it)."""
    users = {user for user, _, _ in train}
    count = Counter(item for _, item, _ in train)
    touched = Counter(item for _, item in {(user, item) for user, item, _ in train})
    weights = [count[i] * math.log(len(users) / touched[i]) if count[i] else 0.0 for i in item_ids]
    return [weight / sum(weights) for weight in weights]
