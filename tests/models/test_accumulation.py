"""Protects the exactness of a step: the distributed training equals plain PyTorch in float64.

Covers one rank and two, tables spread in several ways, double hashing, attention over the
history, accidental hits, and an epoch whose last macro-batch and micro-batch are short.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from models.accumulation import unique_rows
from models.config import TrainJob
from models.storage import parquet_rows
from models.trainer import train
from tests.models.reference import train_reference
from tests.models.sinks import Recorder
from tests.models.workers import run
from tests.models.worlds import make_job, make_model, make_world


def _largest_difference(job: TrainJob) -> float:
    tables, towers = train_reference(job)
    folder = Path(job.output_dir)
    found = load_file(folder / "towers.safetensors")
    assert found.keys() == towers.keys()
    differences = [(found[name] - towers[name]).abs().max() for name in towers]
    for name, expected in tables.items():
        weight = load_file(folder / f"tables/{name}.safetensors")["weight"]
        assert torch.equal(weight[0], torch.zeros(weight.shape[1])), "the padding row was trained"
        differences.append((weight - expected).abs().max())
    return float(torch.stack(differences).max())


def _small_job(folder: Path, hashes: int = 1, **changes: Any) -> TrainJob:
    world = make_world(
        folder / "world", num_users=40, num_items=30, events_per_user=9, hashes=hashes
    )
    # The last macro-batch holds a single example: one of two ranks has none at all.
    macro = 17 * 4
    rows = [parquet_rows(file) for file in world.train_files]
    surplus = (sum(rows) - 1) % macro
    last = world.train_files[-1]
    pq.write_table(pq.read_table(last).slice(surplus), last)
    settings: dict[str, Any] = {
        "batch_size": 17,
        "accumulate": 4,
        "epochs": 2,
        "loss": {"num_negatives": 9, "negatives": "tfidf", "chunk": 5},
        **changes,
    }
    return make_job(world, folder / "out", model=make_model(), **settings)


@pytest.mark.parametrize("hashes", [1, 2])
def test_one_rank_equals_plain_pytorch(tmp_path: Path, hashes: int) -> None:
    job = _small_job(tmp_path, hashes)
    train(job, Recorder())
    assert _largest_difference(job) < 1e-5


def test_tables_on_every_rank_equal_plain_pytorch(tmp_path: Path) -> None:
    job = _small_job(tmp_path, sharding="data_parallel")
    train(job, Recorder())
    assert _largest_difference(job) < 1e-5


def test_initial_weights_are_not_what_is_compared(tmp_path: Path) -> None:
    # The comparison above must be able to fail: training moves the weights by far more.
    job = _small_job(tmp_path)
    train(job, Recorder())
    tables, _ = train_reference(
        job.model_copy(update={"training": job.training.model_copy(update={"epochs": 1})})
    )
    weight = load_file(Path(job.output_dir) / "tables/item.safetensors")["weight"]
    assert float((weight - tables["item"]).abs().max()) > 1e-2


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "column_wise", "mixed"])
def test_two_ranks_equal_plain_pytorch(tmp_path: Path, sharding: str) -> None:
    job = _small_job(tmp_path)
    ways = dict.fromkeys(job.tables, sharding)
    if sharding == "mixed":
        ways = {"user": "row_wise", "item": "table_wise", "tag": "data_parallel"}
    tables = {
        name: table.model_copy(update={"sharding": ways[name]})
        for name, table in job.tables.items()
    }
    job = job.model_copy(update={"tables": tables})
    summary = run(job, tmp_path / "run", ranks=2)
    assert summary["world_size"] == 2
    assert _largest_difference(job) < 1e-5


@pytest.mark.parametrize("rows", [50, 100_000])
def test_unique_rows_by_bitmap_and_by_sorting(rows: int) -> None:
    codes = torch.tensor([7, 3, 7, 0, 49, 3])
    unique, positions = unique_rows(codes, rows)
    assert unique.tolist() == [0, 3, 7, 49]
    assert unique[positions].tolist() == codes.tolist()
