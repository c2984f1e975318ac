"""A model to serve, of any size, with vectors like trained ones: made, not trained.

Items belong to tastes. An item's vector comes from its ID's row and from the mean of its tags, most
of them tags of its taste; a user's from a row of their own and from a history over three tastes.
Both towers have a hidden layer that is set so that they add their inputs: what they compute is
known, and takes the time of trained ones. The `full` model has a row for each ID; in the `sparse`
one a tenth of the items, the most frequent, own rows and the others share a tenth as many buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from models.bundle import BUNDLE, Vocabulary, write_bundle
from models.config import EmbeddingTableSettings, ModelSettings
from models.weights import TrainedModel, write_weights
from tasks.config import VocabularySettings
from tasks.longtail.encoding import Encoder
from tasks.longtail.vocabulary_table import Vocabulary as VocabularyTable

DIM = 64
HISTORY = 50
TAGS = 8
Kind = Literal["full", "sparse"]


@dataclass(frozen=True)
class Shape:
    """How large a world is."""

    items: int
    users: int
    tastes: int
    seed: int = 1

    @property
    def tags(self) -> int:
        """Tags that there are."""
        return 10 * self.tastes


class World:
    """Items, users and who likes what.

    Args:
        shape: Its size.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        rng = np.random.default_rng(shape.seed)
        self._rng = rng
        self.taste = rng.integers(0, shape.tastes, shape.items)
        own = self.taste[:, None] * 10 + rng.integers(0, 10, (shape.items, TAGS))
        other = rng.integers(0, shape.tags, (shape.items, TAGS))
        self.tags = np.where(rng.random((shape.items, TAGS)) < 0.8, own, other)
        # Tastes that are alike lie close together: their centres are sums of a few directions.
        broad = rng.normal(size=(max(2, shape.tastes // 20), DIM))
        self.centres = broad[np.arange(shape.tastes) % len(broad)]
        self.centres = self.centres + rng.normal(size=(shape.tastes, DIM))
        share = np.arange(1, shape.items + 1) ** -1.05
        self.counts = np.ceil(share / share.sum() * 20.0 * shape.items).astype(np.int64)
        self.history, self.user_taste = self._histories()

    def _histories(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Distinct enough items of three tastes for each user."""
        shape, rng = self.shape, self._rng
        order = np.argsort(self.taste, kind="stable")
        starts = np.searchsorted(self.taste[order], np.arange(shape.tastes + 1))
        tastes = rng.integers(0, shape.tastes, (shape.users, 3))
        chosen = tastes[np.arange(shape.users)[:, None], rng.integers(0, 3, (shape.users, HISTORY))]
        size = starts[chosen + 1] - starts[chosen]
        # The frequent items of a taste come first, and are taken more often.
        place = (rng.random(chosen.shape) ** 3 * size).astype(np.int64)
        found = order[np.minimum(starts[chosen] + place, shape.items - 1)]
        return found.astype(np.int32), tastes

    def write(self, folder: Path, kind: Kind) -> Path:
        """A trained bundle of the world; made once."""
        target = folder / kind / "bundle"
        if (target / BUNDLE).is_file():
            return target
        work = folder / kind
        work.mkdir(parents=True, exist_ok=True)
        shape = self.shape
        own = shape.items if kind == "full" else max(1, shape.items // 10)
        buckets = 1 if kind == "full" else max(1, shape.items // 100)
        ids = np.arange(shape.items, dtype=np.int64) * 7 + 3
        item = _vocabulary(ids[:own], buckets)
        user_ids = np.arange(shape.users, dtype=np.int64) * 11 + 5
        user = _vocabulary(user_ids, 1)
        tag = _vocabulary(np.arange(shape.tags, dtype=np.int64), 1)
        vocabularies = {"item": item, "user": user, "tag": tag}
        files = {}
        for name, table in vocabularies.items():
            path = work / f"{name}.parquet"
            pq.write_table(table.table.to_arrow(compat_level=pl.CompatLevel.oldest()), path)
            files[name] = Vocabulary(file=str(path), policy={**table.meta(), "source": _OF[name]})
        corpus, users = work / "items.parquet", work / "users.parquet"
        tags = (self.tags + tag.first_own_row).astype(np.int32)
        pq.write_table(
            pa.table(
                {
                    "item_id": ids,
                    "train_count": self.counts,
                    "iid": _lists(Encoder(item, "item").codes(pl.Series(ids))),
                    "tags": _lists(tags),
                }
            ),
            corpus,
        )
        pq.write_table(
            pa.table(
                {
                    "user_id": user_ids,
                    "user": np.arange(shape.users),
                    "uid": _lists(Encoder(user, "user").codes(pl.Series(user_ids))),
                    "history": _lists(self.history),
                    "seen": _lists(np.sort(self.history, axis=1)),
                }
            ),
            users,
        )
        rows = {name: table.rows for name, table in vocabularies.items()}
        trained = _trained(rows, shape.users)
        weights = work / "weights"
        write_weights(weights, trained, _adding(trained), self._tables(vocabularies).items())
        write_bundle(
            target,
            kind="two_tower",
            weights_dir=weights,
            corpus_file=str(corpus),
            users_file=str(users),
            vocabularies=files,
        )
        return target

    def _tables(self, vocabularies: dict[str, VocabularyTable]) -> dict[str, Tensor]:
        rng = np.random.default_rng(self.shape.seed + 1)

        def rows(table: VocabularyTable, own: npt.NDArray[Any]) -> Tensor:
            found = 0.2 * rng.normal(size=(table.rows, DIM))
            found[table.first_own_row :] = own
            found[0] = 0
            return torch.from_numpy(found.astype(np.float32))

        item, user, tag = (vocabularies[name] for name in ("item", "user", "tag"))
        owners = self.centres[self.taste[: len(item.table)]]
        tags = self.centres[np.arange(self.shape.tags) // 10]
        likes = self.centres[self.user_taste].mean(1)
        return {
            "item": rows(item, owners + 0.7 * rng.normal(size=owners.shape)),
            "user": rows(user, 0.5 * likes + 0.5 * rng.normal(size=likes.shape)),
            "tag": rows(tag, tags + 0.7 * rng.normal(size=tags.shape)),
        }


_OF = {
    "item": "interactions.item_id",
    "user": "interactions.user_id",
    "tag": "items.tags",
}


def _vocabulary(owners: npt.NDArray[np.int64], buckets: int) -> VocabularyTable:
    rows = np.arange(len(owners), dtype=np.int32) + buckets + 1
    day = date(2026, 1, 1)
    table = pl.DataFrame({"id": owners, "row": rows}).with_columns(
        pl.lit(10.0).alias("count"), pl.lit(day).alias("last_seen"), pl.lit(day).alias("since")
    )
    policy = VocabularySettings(min_count=1, tail_buckets=buckets)
    return VocabularyTable(policy, table)


def _trained(rows: dict[str, int], users: int) -> TrainedModel:
    model = {
        "dim": DIM,
        "user": {
            "features": [
                {"name": "uid", "table": "user"},
                {
                    "name": "recent",
                    "table": "item",
                    "kind": "history",
                    "max_length": HISTORY,
                    "pooling": "attention",
                },
            ],
            "hidden": [2 * DIM],
        },
        "item": {
            "features": [
                {"name": "iid", "table": "item"},
                {"name": "tags", "table": "tag", "kind": "list"},
            ],
            "hidden": [2 * DIM],
        },
    }
    return TrainedModel(
        kind="two_tower",
        model=ModelSettings.model_validate(model),
        tables={name: EmbeddingTableSettings(dim=DIM) for name in rows},
        table_rows=rows,
        table_hashes=dict.fromkeys(rows, 1),
        num_users=users,
        digest="made",
    )


def _adding(trained: TrainedModel) -> dict[str, Tensor]:
    """Weights with which a tower adds its two inputs, as SiLU(x) - SiLU(-x) = x."""
    state = trained.towers().state_dict()
    one = torch.eye(DIM)
    both = torch.cat([one, one], dim=1)
    for side in ("user", "item"):
        state[f"{side}.mlp.0.weight"] = torch.cat([both, -both])
        state[f"{side}.mlp.2.weight"] = torch.cat([one, -one], dim=1)
        for layer in (0, 2):
            state[f"{side}.mlp.{layer}.bias"].zero_()
    return state


def _lists(rows: npt.NDArray[Any]) -> pa.Array:
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    return pa.ListArray.from_arrays(offsets, pa.array(rows.ravel().astype(np.int32)))
