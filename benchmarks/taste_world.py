"""Users with a taste, to see whether a model still finds what they take next.

Items belong to clusters and are Zipf-popular within one; a user takes nine events in ten from two
clusters of their own. The last event of a user is the target, unless they had the item before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from models.alias_table import build_alias_table
from models.batch import UserInputs
from models.config import TrainJob
from models.corpus import Corpus
from models.encoder import Encoder
from models.jagged import Jagged
from models.metrics import per_user_metrics, summarise
from models.retrieval import top_k
from models.weights import compute_item_vectors, load_tables, load_towers, read_weights_file

EVENTS = 20
HISTORY = 10
FIRST_ROW = 2


@dataclass(frozen=True)
class Tastes:
    """What decides the bytes of a world."""

    users: int = 20_000
    items: int = 10_000
    clusters: int = 100
    seed: int = 1


def make_tastes(folder: Path, shape: Tastes) -> None:
    """Writes corpus, training examples, test users and a table of negatives; once."""
    if (folder / "_SUCCESS").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(shape.seed)
    size = shape.items // shape.clusters
    popularity = np.arange(1, size + 1) ** -0.8
    own = rng.integers(0, shape.clusters, (shape.users, 2))
    cluster = np.take_along_axis(own, rng.integers(0, 2, (shape.users, EVENTS)), 1)
    stray = rng.random((shape.users, EVENTS)) > 0.9
    cluster = np.where(stray, rng.integers(0, shape.clusters, cluster.shape), cluster)
    place = rng.choice(size, cluster.shape, p=popularity / popularity.sum())
    item = cluster * size + place
    count = np.bincount(item[:, :-1].ravel(), minlength=shape.items)
    order = np.argsort(-count, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(shape.items)
    item = rank[item].astype(np.int32)
    rows = np.arange(shape.items, dtype=np.int32) + FIRST_ROW
    corpus = {"train_count": pa.array(count[order]), "item_id_code": _lists(rows[:, None])}
    pq.write_table(pa.table(corpus), folder / "items.parquet")
    pq.write_table(
        build_alias_table(np.sqrt(count[order] + 1)).to_arrow(), folder / "tfidf.parquet"
    )
    user = np.arange(shape.users)

    def inputs(last: int) -> dict[str, pa.Array]:
        return {
            "user": pa.array(user),
            "user_id_code": _lists((user.astype(np.int32) + FIRST_ROW)[:, None]),
            "history": _lists(item[:, max(0, last - HISTORY) : last]),
        }

    examples = []
    for number in range(1, EVENTS - 1):
        columns = {**inputs(number), "item": pa.array(item[:, number])}
        columns["weight"] = pa.array(np.ones(shape.users, np.float32))
        examples.append(pa.table(columns))
    pq.write_table(pa.concat_tables(examples), folder / "train.parquet")
    fresh = (item[:, :-1] != item[:, -1:]).all(1)
    test = {**inputs(EVENTS - 1), "seen": _lists(item[:, :-1]), "targets": _lists(item[:, -1:])}
    pq.write_table(pa.table(test).filter(pa.array(fresh)), folder / "test.parquet")
    (folder / "_SUCCESS").touch()


def make_taste_job(folder: Path, output: Path, shape: Tastes, dtype: str, seed: int) -> TrainJob:
    """A job over a world, its tables of a type."""
    history = {"name": "recent", "table": "item", "kind": "history", "max_length": HISTORY}
    table = {"dim": 32, "dtype": dtype}
    return TrainJob.model_validate(
        {
            "kind": "two_tower",
            "train_files": [str(folder / "train.parquet")],
            "corpus_file": str(folder / "items.parquet"),
            "negatives_file": str(folder / "tfidf.parquet"),
            "table_rows": {"user": shape.users + FIRST_ROW, "item": shape.items + FIRST_ROW},
            "table_hashes": {"user": 1, "item": 1},
            "num_users": shape.users,
            "tables": {"user": table, "item": table},
            "model": {
                "user": {"features": [{"name": "user_id_code", "table": "user"}, history]},
                "item": {"features": [{"name": "item_id_code", "table": "item"}]},
                "dim": 32,
            },
            "training": {
                "validation": {"users": 0},
                "epochs": 2,
                "batch_size": 1024,
                "threads": 1,
                "seed": seed,
                "checkpoint_every": 1_000_000,
            },
            "checkpoint_dir": str(output / "checkpoints"),
            "output_dir": str(output / "weights"),
            "digest": f"{dtype}-{seed}",
        }
    )


def recall_at_20(folder: Path, job: TrainJob) -> float:
    """Recall@20 of a trained job on the world's test users, over the whole corpus."""
    weights = Path(job.output_dir)
    file = read_weights_file(weights)
    assert file is not None
    towers, tables = load_towers(weights, file.trained), load_tables(weights, file.trained)
    corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
    encoder = Encoder(job.model, corpus, job.table_hashes)
    test = pq.read_table(folder / "test.parquet")
    users = UserInputs.from_arrow(test, job.model)
    with torch.no_grad():
        vectors = towers.user_vectors(tables, encoder.user_codes(users))
    items = compute_item_vectors(towers, tables, encoder, len(corpus))
    found, _ = top_k(vectors, items, 20, users.seen)
    targets = Jagged.from_arrow(test.column("targets"))
    return summarise(per_user_metrics(found, targets, (20,)))["recall_at_20"]


def _lists(values: np.ndarray[tuple[int, int], np.dtype[np.int32]]) -> pa.ListArray:
    rows, width = values.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(np.int32).ravel()))
