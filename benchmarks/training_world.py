"""Examples to train on, with as many rows in the tables as wanted and long-tailed IDs.

Five tables: users and items have `rows` rows each, and three attributes a tenth of that. IDs of
users, items and attributes follow Zipf's law cut off at the size of their table. A user has up to
twenty items of history, an item up to five tags.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.synthetic_events import zipf_ranks
from models.config import TrainJob
from tasks.config import digest_of

DIM = 64
FIRST_ROW = 2  # after the padding row and one shared bucket
TABLES = ("user", "item", "country", "category", "tag")


@dataclass(frozen=True)
class WorldShape:
    """What decides the bytes of a world."""

    rows: int
    steps: int
    """Batches in the training files."""
    batch: int = 4096
    steps_per_file: int = 2
    exponent: float = 1.05
    history: int = 20
    tags: int = 5
    seed: int = 1

    @property
    def attribute_rows(self) -> int:
        """IDs of each attribute."""
        return max(10, self.rows // 10)


def make_world(cache: Path, shape: WorldShape) -> Path:
    """The world's folder; made once."""
    folder = cache / f"training-{shape.rows}-{digest_of(asdict(shape))[:8]}"
    if (folder / "_SUCCESS").exists():
        return folder
    for name in ("train", "items"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([shape.seed, shape.rows])

    def codes(size: int, ids: int) -> npt.NDArray[np.int32]:
        ranks = zipf_ranks(rng, size, ids, shape.exponent)
        return (ranks - 1 + FIRST_ROW).astype(np.int32)

    share = np.arange(1, shape.rows + 1) ** -shape.exponent
    count = np.ceil(share / share.sum() * 100.0 * shape.rows)
    tags = rng.integers(1, shape.tags + 1, shape.rows)
    corpus = {
        # The corpus is ordered by its train interactions, so an index is a rank.
        "train_count": pa.array(count.astype(np.int64)),
        "item_id_code": _ragged(np.arange(shape.rows, dtype=np.int32) + FIRST_ROW, None),
        "category": _ragged(codes(shape.rows, shape.attribute_rows), None),
        "tags": _ragged(codes(int(tags.sum()), shape.attribute_rows), tags),
    }
    pq.write_table(pa.table(corpus), folder / "items/part-0.parquet")
    for number in range(-(-shape.steps // shape.steps_per_file)):
        rows = shape.batch * shape.steps_per_file
        users = zipf_ranks(rng, rows, shape.rows, shape.exponent) - 1
        lengths = rng.integers(0, shape.history + 1, rows)
        history = zipf_ranks(rng, int(lengths.sum()), shape.rows, shape.exponent) - 1
        items = zipf_ranks(rng, rows, shape.rows, shape.exponent) - 1
        columns = {
            "user": pa.array(users),
            "item": pa.array(items.astype(np.int32)),
            "history": _ragged(history.astype(np.int32), lengths),
            "user_id_code": _ragged((users + FIRST_ROW).astype(np.int32), None),
            "country": _ragged(codes(rows, shape.attribute_rows), None),
            "weight": pa.array(np.ones(rows, np.float32)),
        }
        pq.write_table(pa.table(columns), folder / f"train/part-{number:05d}.parquet")
    (folder / "_SUCCESS").touch()
    return folder


def make_job(folder: Path, shape: WorldShape, steps: int, **training: object) -> TrainJob:
    """A job on the first steps of a world.

    Args:
        folder: The world.
        shape: Its shape.
        steps: Batches to train on; the files hold no fewer.
        training: Overrides settings of the training.
    """
    files = sorted((folder / "train").glob("*.parquet"))[: -(-steps // shape.steps_per_file)]
    rows = dict.fromkeys(TABLES, shape.attribute_rows + FIRST_ROW)
    rows |= {"user": shape.rows + FIRST_ROW, "item": shape.rows + FIRST_ROW}
    history = {"name": "recent", "table": "item", "kind": "history", "max_length": shape.history}
    user = [{"name": "user_id_code", "table": "user"}, history]
    item = [{"name": "item_id_code", "table": "item"}, {"name": "category", "table": "category"}]
    return TrainJob.model_validate(
        {
            "kind": "two_tower",
            "train_files": [str(path) for path in files],
            "corpus_file": str(folder / "items/part-0.parquet"),
            "negatives_file": None,
            "table_rows": rows,
            "table_hashes": dict.fromkeys(TABLES, 1),
            "num_users": shape.rows,
            "tables": {name: {"dim": DIM} for name in TABLES},
            "model": {
                "user": {"features": [*user, {"name": "country", "table": "country"}]},
                "item": {"features": [*item, {"name": "tags", "table": "tag", "kind": "list"}]},
                "dim": DIM,
            },
            "training": {
                "validation": {"users": 0},
                "epochs": 1,
                "batch_size": shape.batch,
                "threads": 1,
                "checkpoint_every": 1_000_000,
                # The same loss for every contender: negatives of the batch.
                "loss": {"negatives": None, "num_negatives": 0},
                **training,
            },
            "checkpoint_dir": str(folder / "checkpoints"),
            "output_dir": str(folder / "weights"),
            "digest": "benchmark",
        }
    )


def _ragged(values: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64] | None) -> pa.ListArray:
    if lengths is None:
        lengths = np.ones(len(values), np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
