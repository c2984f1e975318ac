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

from models import towers
from models.config import TrainJob
from models.errors import ModelError
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


def _small_job(folder: Path, hashes: int = 1, short: int = 1, **changes: Any) -> TrainJob:
    """A job whose last macro-batch holds `short` examples: with 1, one of two ranks has none."""
    world = make_world(
        folder / "world", num_users=30, num_items=25, events_per_user=6, hashes=hashes
    )
    macro = 17 * 4
    rows = [parquet_rows(file) for file in world.train_files]
    surplus = (sum(rows) - short) % macro
    last = world.train_files[-1]
    pq.write_table(pq.read_table(last).slice(surplus), last)
    settings: dict[str, Any] = {
        "batch_size": 17,
        "accumulate": 4,
        "epochs": 2,
        "loss": {"num_negatives": 9, "negatives": "tfidf", "chunk": 5},
        # Adagrad's first step divides a gradient by itself: with a smaller one, gradients that are
        # all rounding would be compared.
        "optimizer": {"eps": 1e-4},
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


@pytest.mark.parametrize("sparse", ["rowwise_adagrad", "adagrad"])
def test_columns_on_one_rank_equal_plain_pytorch(tmp_path: Path, sparse: str) -> None:
    """The parts are there on one rank, too; row-wise Adagrad keeps a number for each."""
    # Of one element, more gradients are all rounding than of a row.
    optimizer = {"eps": 1e-3 if sparse == "adagrad" else 1e-4, "sparse": sparse}
    job = _small_job(tmp_path, sharding="column_wise", optimizer=optimizer)
    train(job, Recorder())
    assert _largest_difference(job) < 1e-5
    if sparse == "rowwise_adagrad":
        whole = {n: t.model_copy(update={"column_width": t.dim}) for n, t in job.tables.items()}
        assert _largest_difference(job.model_copy(update={"tables": whole})) > 1e-3


@pytest.mark.parametrize("short", [0, 18])
@pytest.mark.parametrize("sparse", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_every_optimizer_equals_plain_pytorch(tmp_path: Path, sparse: str, short: int) -> None:
    """With a last macro-batch that is whole (0), and one of a micro-batch and an example."""
    dense = {"rowwise_adagrad": "adagrad"}.get(sparse, sparse)
    job = _small_job(
        tmp_path,
        short=short,
        log_every=1,
        # FBGEMM has no Adam on CPUs.
        sharding="data_parallel" if sparse == "adam" else "auto",
        optimizer={
            "sparse": sparse,
            "dense": dense,
            "learning_rate": 0.005,
            "sparse_lr_scale": 4.0,
            # The first step of an adaptive optimizer divides a gradient by itself: without this a
            # gradient that is all rounding would be compared.
            "eps": 1e-3,
            "warmup_steps": 3,
            "clip_norm": 1.9,
            "accumulator_decay": 0.5,
        },
    )
    recorder = Recorder()
    train(job, recorder)
    norms = [metrics["gradient_norm"] for _, metrics in recorder.metrics]
    assert max(norms) > 1.9, "the limit is to be reached"
    assert _largest_difference(job) < 1e-5


def test_tables_on_cpus_without_adam_say_so(tmp_path: Path) -> None:
    job = _small_job(tmp_path, optimizer={"sparse": "adam"})
    with pytest.raises(ModelError, match="sharding: data_parallel"):
        train(job, Recorder())


@pytest.mark.parametrize("short", [0, 18])
def test_two_passes_equal_plain_pytorch_over_the_macro_batch(tmp_path: Path, short: int) -> None:
    loss = {"num_negatives": 9, "negatives": "tfidf", "chunk": 5, "pool": "macro_batch"}
    job = _small_job(tmp_path, short=short, loss=loss)
    train(job, Recorder())
    assert _largest_difference(job) < 1e-5


def test_accumulation_alone_does_not_enlarge_the_pool(tmp_path: Path) -> None:
    """An example meets its micro-batch, however many are accumulated; two passes change that."""

    def columns(accumulate: int, pool: str) -> float:
        loss = {"num_negatives": 0, "negatives": None, "pool": pool}
        job = _small_job(
            tmp_path / f"{accumulate}-{pool}", accumulate=accumulate, epochs=1, loss=loss
        )
        recorder = Recorder()
        train(job, recorder)
        pools = accumulate if pool == "micro_batch" else 1
        _, first = recorder.metrics[0]
        # Columns of a pool: those of an example, times the examples that share them.
        return first["columns_per_example"] * 17 * accumulate / pools

    alone = columns(1, "micro_batch")
    assert columns(4, "micro_batch") == pytest.approx(alone, rel=0.1)
    assert columns(4, "macro_batch") > 1.3 * alone


@pytest.mark.parametrize("logq", ["off", "corrected"])
def test_recomputed_activations_change_nothing(
    tmp_path: Path, logq: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(towers, "_PORTION", 7)
    loss = {"num_negatives": 9, "negatives": "tfidf", "logq": logq}
    kept = _small_job(tmp_path / "a", loss=loss)
    again = _small_job(tmp_path / "b", loss=loss, checkpoint_activations=True)
    for job in (kept, again):
        train(job, Recorder())
    for name in ("towers", "tables/user", "tables/item", "tables/tag"):
        first, second = (
            load_file(Path(job.output_dir) / f"{name}.safetensors") for job in (kept, again)
        )
        for key, weight in first.items():
            # Portions are other sizes of products, whose sums are rounded in another order.
            torch.testing.assert_close(weight, second[key], rtol=1e-4, atol=2e-5)


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
@pytest.mark.parametrize(
    "sharding", ["table_wise", "row_wise", "column_wise", "mixed", "first_rank"]
)
def test_two_ranks_equal_plain_pytorch(tmp_path: Path, sharding: str) -> None:
    job = _small_job(tmp_path)
    ways = dict.fromkeys(job.tables, "auto" if sharding == "first_rank" else sharding)
    if sharding == "mixed":
        ways = {"user": "row_wise", "item": "table_wise", "tag": "data_parallel"}
    tables = {
        name: table.model_copy(update={"sharding": ways[name]})
        for name, table in job.tables.items()
    }
    if sharding == "first_rank":
        training = job.training.model_copy(update={"table_ranks": 1})
        job = job.model_copy(update={"training": training})
    else:
        job = job.model_copy(update={"tables": tables})
    summary = run(job, tmp_path / "run", ranks=2)
    assert summary["world_size"] == 2
    assert _largest_difference(job) < 1e-5


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "data_parallel"])
def test_two_ranks_limit_the_norm_of_the_whole_gradient(tmp_path: Path, sharding: str) -> None:
    """Both ranks touch the same rows: the norm of the sum counts, not the sum of norms."""
    job = _small_job(
        tmp_path,
        short=18,
        sharding=sharding,
        optimizer={
            "learning_rate": 0.005,
            "sparse_lr_scale": 4.0,
            "eps": 1e-3,
            "warmup_steps": 3,
            "clip_norm": 1.9,
            "accumulator_decay": 0.5,
        },
    )
    assert run(job, tmp_path / "run", ranks=2)["world_size"] == 2
    assert _largest_difference(job) < 1e-5
    # The comparison must be able to fail.
    free = job.training.optimizer.model_copy(update={"clip_norm": None})
    unlimited = job.training.model_copy(update={"optimizer": free})
    assert _largest_difference(job.model_copy(update={"training": unlimited})) > 1e-4
