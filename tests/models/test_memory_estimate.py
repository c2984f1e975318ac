"""Protects the estimate of memory: tables and optimizer to the byte, as ranks really hold them;
the rest at least what a training takes and not many times as much; and the refusal of a training
that does not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models.config import EmbeddingTableSettings, TrainingSettings, TrainJob
from models.device import _free_in_container, rank_memory_bytes
from models.errors import MemoryShortageError
from models.memory_estimate import (
    PROCESS_BYTES,
    RankMemory,
    TableShard,
    column_holders,
    estimate_rank_memory,
    memory_table,
    place_tables,
    tower_parameters,
)
from models.memory_use import bytes_of
from models.storage import mean_elements
from models.trainer import train
from models.two_tower import TwoTower
from tests.models.ranks import on_ranks
from tests.models.sinks import Recorder
from tests.models.worlds import World, make_job, make_model, make_world

CPU = torch.device("cpu")
MIB = 2**20


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("memory"), num_users=300, num_items=200)


def test_needs_no_torch() -> None:
    code = "import models.memory_estimate, sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "False"


def _estimate(job: TrainJob, ranks: int = 1, **changes: Any) -> list[RankMemory]:
    return estimate_rank_memory(
        job.model, job.tables, job.table_rows, job.training, ranks, items=200, **changes
    )


@pytest.mark.parametrize(
    ("sparse", "one_state", "other_state"),
    [
        ("rowwise_adagrad", 51, 50 + 1 + 1),
        ("adagrad", 51 * 16, 50 * 16 + 16 + 8),
        ("sgd", 0, 0),
    ],
)
def test_tables_and_optimizers_by_hand(
    world: World, tmp_path: Path, sparse: str, one_state: int, other_state: int
) -> None:
    """101 rows of 16 floats on two ranks, and two tables of one row on the second."""
    training = make_job(world, tmp_path, optimizer={"sparse": sparse}).training
    dims = {"user": 16, "item": 16, "tag": 8}
    one, other = estimate_rank_memory(
        make_model("mean"),
        {name: EmbeddingTableSettings(dim=dim) for name, dim in dims.items()},
        {"user": 101, "item": 1, "tag": 1},
        training,
        2,
        items=200,
        placement={
            "user": [TableShard(0, 51, 16), TableShard(1, 50, 16)],
            "item": [TableShard(1, 1, 16)],
            "tag": [TableShard(1, 1, 8)],
        },
    )
    assert (one.tables, other.tables) == (51 * 64, 50 * 64 + 64 + 32)
    # Towers: 32 → 32 → 16 and 24 → 32 → 16, each with an accumulator a parameter.
    towers = (33 * 32 + 33 * 16) + (25 * 32 + 33 * 16)
    assert one.towers == other.towers == 4 * towers
    assert one.optimizer == 4 * (one_state + towers)
    assert other.optimizer == 4 * (other_state + towers)
    assert one.total == sum(
        (
            one.tables,
            one.optimizer,
            one.towers,
            one.activations,
            one.input,
            one.copies,
            PROCESS_BYTES,
        )
    )


def test_parameters_are_those_of_the_towers(world: World, tmp_path: Path) -> None:
    job = make_job(world, tmp_path)
    towers = TwoTower(job.model, job.tables, job.table_hashes, 0)
    expected = sum(p.numel() for p in towers.parameters())
    sides = (job.model.user, job.model.item)
    assert sum(tower_parameters(t, job.tables, job.model.dim) for t in sides) == expected


def test_places_by_size() -> None:
    tables = {
        "big": EmbeddingTableSettings(dim=8),
        "small": EmbeddingTableSettings(dim=4, dtype="fp16"),
        "rows": EmbeddingTableSettings(dim=4, sharding="row_wise"),
        "columns": EmbeddingTableSettings(dim=8, sharding="column_wise", column_width=4),
        "copied": EmbeddingTableSettings(dim=4, sharding="data_parallel"),
    }
    rows = {"big": 100, "small": 10, "rows": 7, "columns": 50, "copied": 3}
    placed = place_tables(tables, rows, 3, table_ranks=2)
    # The larger half of the odd number of rows is on rank 0 already.
    assert placed["big"] == [TableShard(1, 100, 8)]
    assert placed["columns"] == [TableShard(0, 50, 4), TableShard(1, 50, 4)]
    assert placed["small"] == [TableShard(0, 10, 4)]
    assert placed["rows"] == [TableShard(0, 4, 4), TableShard(1, 3, 4)]
    assert placed["copied"] == [TableShard(rank, 3, 4) for rank in range(3)]


def test_columns_go_round() -> None:
    columns = {"sharding": "column_wise", "column_width": 4}
    tables = {
        name: EmbeddingTableSettings.model_validate({"dim": dim, **columns})
        for name, dim in {"a": 16, "b": 8, "c": 8}.items()
    }
    tables["whole"] = EmbeddingTableSettings()
    assert column_holders(tables, 1) == {"a": [0] * 4, "b": [0] * 2, "c": [0] * 2}
    assert column_holders(tables, 2) == {"a": [0, 0, 1, 1], "b": [0, 1], "c": [0, 1]}
    assert column_holders(tables, 3) == {"a": [0, 0, 1, 2], "b": [0, 1], "c": [2, 0]}
    assert column_holders(tables, 5) == {"a": [0, 1, 2, 3], "b": [4, 0], "c": [1, 2]}


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"accumulate": 1, "batch_size": 512},
        {"loss": {"num_negatives": 300, "pool": "macro_batch"}},
        {"checkpoint_activations": True, "batch_size": 1024, "accumulate": 2},
    ],
    ids=["default", "one micro-batch", "macro pool", "recomputed"],
)
@pytest.mark.parametrize("hidden", [(32,), (256, 256)], ids=["narrow", "wide"])
def test_a_training_takes_no_more_than_was_said(
    world: World, tmp_path: Path, training: dict[str, Any], hidden: tuple[int, ...]
) -> None:
    model = make_model()
    sides = {
        side: getattr(model, side).model_copy(update={"hidden": hidden})
        for side in ("user", "item")
    }
    job = make_job(world, tmp_path, model=model.model_copy(update=sides), log_every=1, **training)
    recorder = Recorder()
    train(job, recorder)
    (measured,) = [m for _, m in recorder.metrics if "memory_tables_mib" in m]
    taken = {k.split("_")[1]: v * MIB for k, v in measured.items() if k.startswith("memory_")}
    files = mean_elements(job.train_files[0], ["history"])
    (needed,) = _estimate(job, elements={"recent": files["history"], "tags": 2.0}, file_rows=2000)
    assert needed.tables == taken["tables"]
    assert needed.towers == taken["towers"]
    # A counter of steps for each parameter is not worth a line.
    assert needed.optimizer <= taken["optimizer"] <= needed.optimizer + 200
    assert taken["activations"] <= needed.activations <= 4 * taken["activations"]
    assert taken["input"] <= needed.input


def hold_and_say(jobs: dict[str, TrainJob]) -> dict[str, tuple[int, int, str]]:
    from models.distributed_training import DistributedTraining
    from models.trainer import training_environment

    found = {}
    with training_environment(CPU):
        for name, job in jobs.items():
            recorder = Recorder()
            training = DistributedTraining(job, recorder, CPU)
            held = bytes_of(training._tables.local_weights())
            state = bytes_of(training._tables.local_state())
            found[name] = held, state, dict(recorder.texts).get("memory_needed", "")
    return found


@pytest.mark.integration
def test_each_rank_holds_what_was_said(world: World, tmp_path: Path) -> None:
    """The table in the log has a line for each rank, with the bytes that it then holds."""
    ways = ("row_wise", "column_wise", "table_wise", "data_parallel")
    jobs = {way: make_job(world, tmp_path, sharding=way) for way in ways}
    by_rank = on_ranks(2, hold_and_say, jobs)
    for way, job in jobs.items():
        found = [of_rank[way] for of_rank in by_rank]
        lines = found[0][2].splitlines()
        assert lines[1].split()[:4] == ["rank", "tables", "optimizer", "towers"]
        assert lines[1].split()[-3:] == ["total", "limit", "margin"]
        assert [line.split()[0] for line in lines[2:]] == ["0", "1"]
        assert found[1][2] == "", "one rank speaks"
        towers = sum(
            4 * tower_parameters(t, job.tables, job.model.dim)
            for t in (job.model.user, job.model.item)
        )
        for line, (held, state, _) in zip(lines[2:], found, strict=True):
            said = [float(number) * MIB for number in line.split()[1:3]]
            assert said == pytest.approx([held, state + towers], abs=0.06 * MIB)
        needed = _estimate(job, 2)
        assert sum(one.tables for one in needed) == sum(held for held, _, _ in found)
        if way != "table_wise":
            assert [one.tables for one in needed] == [held for held, _, _ in found], way


def ways_within(job: TrainJob, limits: tuple[int, ...]) -> list[str]:
    """How the user table is spread where each rank may take so many bytes."""
    from models.distributed_training import DistributedTraining
    from models.trainer import training_environment

    ways = []
    with training_environment(CPU):
        for limit in limits:
            _, held = rank_memory_bytes(CPU)
            training = job.training.model_copy(update={"rank_memory": held + limit})
            made = DistributedTraining(
                job.model_copy(update={"training": training}), Recorder(), CPU
            )
            ways.append(made._tables.sharding["user"])
    return ways


@pytest.mark.integration
def test_the_planner_cuts_a_table_that_leaves_no_room(world: World, tmp_path: Path) -> None:
    """2 M rows of 64 bytes: 130 MiB with a copy for checkpoints on one rank, or half on each."""
    job = make_job(world, tmp_path)
    job = job.model_copy(update={"table_rows": {**job.table_rows, "user": 2_000_000}})
    found = on_ranks(2, ways_within, job, (700 * MIB, 250 * MIB))
    assert found == [["table_wise", "row_wise"]] * 2


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.integration
def test_a_training_that_does_not_fit_is_refused_before_it_starts(
    world: World, tmp_path: Path, ranks: int
) -> None:
    job = make_job(world, tmp_path, rank_memory=500_000_000)
    rows = {**job.table_rows, "user": 40_000_000}
    job = job.model_copy(update={"table_rows": rows})
    said = on_ranks(ranks, refused, job)
    assert len(set(said)) == 1, "on every rank alike"
    for text in ("may use 477 MiB", "most of it is", "spread table 'user'", "margin"):
        assert text in said[0]


def refused(job: TrainJob) -> str:
    before = rank_memory_bytes(CPU)[1]
    with pytest.raises(MemoryShortageError) as caught:
        train(job, Recorder())
    # The table would have taken 2.4 GiB.
    assert rank_memory_bytes(CPU)[1] - before < 600 * MIB
    assert not Path(job.checkpoint_dir).exists() or not any(Path(job.checkpoint_dir).iterdir())
    return str(caught.value)


def test_table_of_ranks() -> None:
    memory = RankMemory(3, MIB, MIB, 0, 2 * MIB, 0, 0, 4 * MIB)
    assert memory.total == 8 * MIB
    head, line = memory_table([memory], [6 * MIB]).splitlines()
    assert head.split()[-3:] == ["total", "limit", "margin"]
    assert line.split() == [
        "3",
        "1.0",
        "1.0",
        "0.0",
        "2.0",
        "0.0",
        "0.0",
        "4.0",
        "8.0",
        "6.0",
        "-2.0",
    ]


def test_an_accelerator_holds_neither_process_nor_copies(world: World, tmp_path: Path) -> None:
    (memory,) = _estimate(make_job(world, tmp_path), on_host=False)
    assert (memory.process, memory.copies) == (0, 0)


def test_limit_of_a_container(tmp_path: Path) -> None:
    assert _free_in_container(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert _free_in_container(tmp_path) == 450
    (tmp_path / "memory.max").write_text("max\n")
    assert _free_in_container(tmp_path) == float("inf")


def test_ranks_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, held = rank_memory_bytes(CPU)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    shared, _ = rank_memory_bytes(CPU)
    assert shared - held == pytest.approx((alone - held) / 4, rel=0.1)


def test_mean_elements_come_from_the_footer(world: World) -> None:
    import pyarrow.parquet as pq

    file = world.train_files[0]
    table = pq.read_table(file)
    lengths = [max(1, len(row)) for row in table.column("history").to_pylist()]
    found = mean_elements(file, ["history", "user_id_code", "absent"])
    assert found == {"history": sum(lengths) / len(lengths), "user_id_code": 1.0}


def test_more_ranks_need_less_each(world: World, tmp_path: Path) -> None:
    """What is spread gets smaller, and a copied table does not."""
    settings = TrainingSettings(batch_size=4096, accumulate=16)
    tables = {
        "user": EmbeddingTableSettings(sharding="row_wise"),
        "item": EmbeddingTableSettings(sharding="row_wise"),
        "tag": EmbeddingTableSettings(sharding="data_parallel"),
    }
    rows = {"user": 10_000_000, "item": 1_000_000, "tag": 1000}
    totals = [
        estimate_rank_memory(make_model(), tables, rows, settings, ranks, items=1_000_000)
        for ranks in (2, 16, 1000)
    ]
    assert totals[0][0].tables > 7 * totals[1][0].tables > 7 * totals[2][0].tables
    assert totals[2][0].tables > 1000 * 64 * 4
    assert len(totals[2]) == 1000
    assert totals[0][0].activations > totals[1][0].activations
