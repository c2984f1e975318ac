"""Small worlds to train on, written in the format of the examples step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from models.alias_table import build_alias_table
from models.config import (
    EmbeddingTableSettings,
    FeatureSettings,
    ModelSettings,
    TowerSettings,
    TrainingSettings,
    TrainJob,
)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """Where a small world lies and what is in it."""

    folder: Path
    num_users: int
    num_items: int
    train_files: tuple[str, ...]
    corpus_file: str
    test_file: str
    users_file: str
    table_rows: dict[str, int]
    table_hashes: dict[str, int]

    def negatives_file(self, kind: str) -> str:
        return str(self.folder / f"negatives/{kind}.parquet")


def lists(rows: list[list[int]]) -> pa.Array:
    return pa.array(rows, pa.list_(pa.int32()))


def codes(ids: npt.NDArray[Any], rows_of: Ints, hashes: int) -> pa.Array:
    """Codes of single IDs: own rows only, padded with 0 to `hashes` codes."""
    return lists([[int(rows_of[i])] + [0] * (hashes - 1) for i in ids])


def make_world(
    folder: Path,
    *,
    num_users: int = 300,
    num_items: int = 200,
    clusters: int = 6,
    events_per_user: int = 20,
    shards: int = 3,
    min_count: int = 3,
    hashes: int = 1,
    seed: int = 0,
) -> World:
    """Users with a taste for one cluster of items; items are Zipf-popular within a cluster.

    IDs with fewer than `min_count` train interactions share one tail bucket (row 1). The last
    event of each user that is a new item is the test target.
    """
    rng = np.random.default_rng(seed)
    item_cluster = rng.integers(0, clusters, num_items)
    user_cluster = rng.integers(0, clusters, num_users)
    popularity = 1.0 / np.arange(1, num_items + 1) ** 0.8
    history: list[list[int]] = []
    for user in range(num_users):
        affinity = np.where(item_cluster == user_cluster[user], 1.0, 0.03) * popularity
        length = max(2, int(rng.poisson(events_per_user)))
        drawn = rng.choice(num_items, length, p=affinity / affinity.sum())
        history.append([int(i) for i in drawn])
    train = [events[:-1] for events in history]
    count = np.bincount([i for events in train for i in events], minlength=num_items)
    order = np.argsort(-count, kind="stable")
    index_of = np.empty(num_items, dtype=np.int64)
    index_of[order] = np.arange(num_items)
    train = [[int(index_of[i]) for i in events] for events in train]
    targets = [int(index_of[events[-1]]) for events in history]
    count = count[order]

    # Numbers of their own, some of them missing: what else is drawn does not depend on them.
    numbers = np.random.default_rng(seed + 1000)
    ages = [float(a) if u % 7 else None for u, a in enumerate(numbers.normal(40, 12, num_users))]
    prices = [float(p) if i % 5 else None for i, p in enumerate(numbers.gamma(2, 9, num_items))]

    item_rows = np.where(count >= min_count, np.arange(num_items) + 2, 1)
    user_rows = np.arange(num_users) + 2
    cluster_rows = np.arange(clusters) + 2
    for name in ("items", "train", "test", "users", "negatives"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    corpus_file = str(folder / "items/part-0.parquet")
    all_items = np.arange(num_items)

    def tags_of(index: int) -> list[int]:
        tags = sorted({int(item_cluster[order[index]]), index % clusters})
        return [code for tag in tags for code in [int(cluster_rows[tag])] + [0] * (hashes - 1)]

    pq.write_table(
        pa.table(
            {
                "item_id": [f"i{i}" for i in all_items],
                "title": [f"Item {i}" for i in all_items],
                "train_count": pa.array(count, pa.int64()),
                "item_id_code": codes(all_items, item_rows, hashes),
                "tags": lists([tags_of(i) for i in range(num_items)]),
                "price": pa.array(prices, pa.float64()),
            }
        ),
        corpus_file,
    )

    rows: list[dict[str, Any]] = []
    for user, events in enumerate(train):
        for place, item in enumerate(events):
            rows.append(
                {
                    "user": user,
                    "item": item,
                    "history": events[max(0, place - 10) : place],
                    "timestamp": place,
                    "weight": 1.0 + 0.5 * (place % 3),
                    "user_id_code": [int(user_rows[user])] + [0] * (hashes - 1),
                    "age": ages[user],
                }
            )
    shuffled = [rows[i] for i in rng.permutation(len(rows))]
    schema = pa.schema(
        [
            ("user", pa.int64()),
            ("item", pa.int32()),
            ("history", pa.list_(pa.int32())),
            ("timestamp", pa.int64()),
            ("weight", pa.float32()),
            ("user_id_code", pa.list_(pa.int32())),
            ("age", pa.float64()),
        ]
    )
    train_files = []
    for shard in range(shards):
        path = str(folder / f"train/part-{shard:05d}.parquet")
        pq.write_table(pa.Table.from_pylist(shuffled[shard::shards], schema=schema), path)
        train_files.append(path)

    users = {
        "user_id": [f"u{u}" for u in range(num_users)],
        "user": pa.array(range(num_users), pa.int64()),
        "user_id_code": codes(np.arange(num_users), user_rows, hashes),
        "age": pa.array(ages, pa.float64()),
        "history": lists([events[-10:] for events in train]),
        "seen": lists([sorted(set(events)) for events in train]),
    }
    users_file = str(folder / "users/part-0.parquet")
    pq.write_table(pa.table(users), users_file)
    test = {
        **users,
        "targets": lists(
            [[t] if t not in events else [] for t, events in zip(targets, train, strict=True)]
        ),
        "train_count": pa.array([len(events) for events in train], pa.int64()),
    }
    test_file = str(folder / "test/part-0.parquet")
    pq.write_table(pa.table(test), test_file)
    for name, weights in (("uniform", np.ones(num_items)), ("popularity", count), ("tfidf", count)):
        table = build_alias_table(np.sqrt(weights) if name == "tfidf" else weights)
        pq.write_table(table.to_arrow(), folder / f"negatives/{name}.parquet")
    return World(
        folder=folder,
        num_users=num_users,
        num_items=num_items,
        train_files=tuple(train_files),
        corpus_file=corpus_file,
        test_file=test_file,
        users_file=users_file,
        table_rows={"user": num_users + 2, "item": num_items + 2, "tag": clusters + 2},
        table_hashes={"user": hashes, "item": hashes, "tag": hashes},
    )


def make_model(pooling: str = "attention", **changes: Any) -> ModelSettings:
    """User ID and history against item ID and tags."""
    return ModelSettings(
        user=TowerSettings(
            features=(
                FeatureSettings(name="user_id_code", table="user"),
                FeatureSettings.model_validate(
                    {
                        "name": "recent",
                        "table": "item",
                        "kind": "history",
                        "pooling": pooling,
                        "max_length": 8,
                    }
                ),
            ),
            hidden=(32,),
        ),
        item=TowerSettings(
            features=(
                FeatureSettings(name="item_id_code", table="item"),
                FeatureSettings(name="tags", table="tag", kind="list"),
            ),
            hidden=(32,),
        ),
        dim=16,
        **changes,
    )


def make_job(
    world: World,
    output: Path,
    *,
    kind: str = "two_tower",
    sharding: str = "auto",
    model: ModelSettings | None = None,
    **training: Any,
) -> TrainJob:
    """A job over a world; `training` overrides settings."""
    settings = TrainingSettings.model_validate(
        {
            "batch_size": 64,
            "accumulate": 4,
            "epochs": 1,
            "threads": 1,
            "log_every": 5,
            "validation": {"users": 0},
            "loss": {"num_negatives": 32, "negatives": "tfidf"},
            **training,
        }
    )
    negatives = settings.loss.negatives
    dims = {"user": 16, "item": 16, "tag": 8}
    return TrainJob(
        kind=kind,  # type: ignore[arg-type]
        train_files=world.train_files,
        corpus_file=world.corpus_file,
        negatives_file=None if negatives is None else world.negatives_file(negatives),
        table_rows=world.table_rows,
        table_hashes=world.table_hashes,
        num_users=world.num_users,
        tables={
            name: EmbeddingTableSettings.model_validate({"dim": dim, "sharding": sharding})
            for name, dim in dims.items()
        },
        model=model or make_model(),
        training=settings,
        checkpoint_dir=str(output / "checkpoints"),
        output_dir=str(output / "weights"),
        digest="d1",
    )
