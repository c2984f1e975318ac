"""A trained bundle that nobody trained: random weights on the corpus and users of a small world."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from models.bundle import Vocabulary, write_bundle
from models.config import EmbeddingTableSettings, ModelSettings
from models.weights import TrainedModel, write_weights
from tests.models.worlds import World, make_world


def make_trained(folder: Path, *, users: int, items: int, seed: int, prior: bool = False) -> Path:
    """A bundle with an ID, a history, a list and a number."""
    world = make_world(folder / "world", num_users=users, num_items=items, hashes=2)
    trained = _trained(world, prior)
    generator = torch.Generator().manual_seed(seed)
    tables = []
    for name, settings in trained.tables.items():
        weight = torch.randn(trained.table_rows[name], settings.dim, generator=generator)
        weight[0] = 0
        tables.append((name, weight))
    state = trained.towers(seed).state_dict()
    for name in state:
        if "pools" in name:  # attention starts as a mean: let it weigh
            state[name] = torch.randn(state[name].shape, generator=generator)
    write_weights(folder / "weights", trained, state, tables)
    vocabulary = folder / "item.parquet"
    pq.write_table(pa.table({"id": ["i1", "i2"], "row": pa.array([2, 3], pa.int32())}), vocabulary)
    write_bundle(
        folder / "bundle",
        kind="two_tower",
        weights_dir=folder / "weights",
        corpus_file=world.corpus_file,
        users_file=world.users_file,
        vocabularies={"item": Vocabulary(file=str(vocabulary), policy={"tail_buckets": 1})},
    )
    return folder / "bundle"


def _trained(world: World, prior: bool) -> TrainedModel:
    model = {
        "dim": 16,
        "user": {
            "features": [
                {"name": "user_id_code", "table": "user"},
                {
                    "name": "recent",
                    "table": "item",
                    "kind": "history",
                    "max_length": 8,
                    "pooling": "attention",
                },
                {"name": "age", "kind": "numeric"},
            ],
            "hidden": [32],
        },
        "item": {
            "features": [
                {"name": "item_id_code", "table": "item"},
                {"name": "tags", "table": "tag", "kind": "list"},
            ],
            "hidden": [32],
        },
        "prior": {"strength": 1.0} if prior else None,
    }
    return TrainedModel(
        kind="two_tower",
        model=ModelSettings.model_validate(model),
        tables={name: EmbeddingTableSettings(dim=16) for name in ("user", "item", "tag")},
        table_rows={name: world.table_rows[name] for name in ("user", "item", "tag")},
        table_hashes={name: world.table_hashes[name] for name in ("user", "item", "tag")},
        num_users=world.num_users,
        digest=f"made-{world.num_items}",
        numeric={
            "user": {"age": {"mean": 40.0, "std": 12.0, "missing": 0, "rows": 1}},  # type: ignore[dict-item]
        },
    )
