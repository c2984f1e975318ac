"""Protects the diagnosis of uneven steps: the table, the rank and the cause are named from what
ranks really served, and nothing is named where all is even."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.accumulation import _hottest
from models.config import TrainJob
from models.memory_estimate import TableShard
from models.skew import Steps, diagnose, report
from models.step_load import Traffic
from models.trainer import train
from tests.models.ranks import on_ranks
from tests.models.sinks import Recorder
from tests.models.worlds import World, make_job, make_world

pytestmark = pytest.mark.integration
CPU = torch.device("cpu")


def _steps(count: int = 40, ranks: int = 2, **changes: Any) -> Steps:
    """Even steps: 10 ms, 1 MiB of two tables on each rank."""
    rng = np.random.default_rng(0)
    seconds = 0.01 + rng.uniform(0, 1e-3, (count, ranks))
    even: dict[str, Any] = {
        "seconds": seconds,
        "busy": 0.5 * seconds,
        "wait": 0.05 * seconds,
        "bytes": np.full((count, ranks, 2), 2.0**20),
        "tables": ("item", "user"),
        "sharding": {"item": "table_wise", "user": "row_wise"},
        "hot": {},
    }
    return Steps(**{**even, **changes})


def test_even_steps_are_left_alone() -> None:
    assert diagnose(_steps()) == []
    assert _steps().unevenness == 1.0
    assert len(report(_steps()).splitlines()) == 1


def test_a_table_that_bursts_is_named_with_its_rank_and_rhythm() -> None:
    steps = _steps(hot={"item": (7, 0.31), "user": (3, 0.01)})
    steps.seconds[::8] *= 3
    steps.bytes[::8, 1, 0] *= 9
    finding, *others = diagnose(steps)
    assert (finding.cause, finding.rank, finding.table) == ("hot table", 1, "item")
    for said in (
        "one in 8",
        "rank 1",
        "table 'item' (table_wise)",
        "column_wise",
        "row, 7, is 31%",
    ):
        assert said in finding.text
    # 9 of 10 MiB a burst on rank 1: 1.67 times the mean of 12 MiB.
    assert "serves 10.0 MiB a step, 1.67 times the mean" in finding.text
    assert "90% of it for table 'item'" in finding.text
    assert others == []


def test_rows_that_lie_together_are_told_from_a_table_on_one_rank() -> None:
    steps = _steps()
    steps.bytes[:, 0, 1] *= 7
    (finding,) = diagnose(steps)
    assert (finding.cause, finding.rank, finding.table) == ("hot rows", 0, "user")
    assert finding.text.startswith("In all steps")


def test_a_slow_machine_is_not_blamed_on_a_table() -> None:
    steps = _steps(ranks=3)
    steps.seconds[5::10] *= 4
    steps.wait[5::10] = 0.03
    steps.wait[5::10, 2] = 0.0
    (finding,) = diagnose(steps)
    assert (finding.cause, finding.rank, finding.table) == ("slow rank", 2, None)


def test_steps_that_are_slow_everywhere_blame_nobody() -> None:
    steps = _steps()
    steps.seconds[3::10] *= 4
    steps.wait[3::10] = 0.001
    (finding,) = diagnose(steps)
    assert (finding.cause, finding.rank, finding.table) == ("all ranks", None, None)
    assert "a checkpoint" in finding.text
    steps.bytes[3::10] *= 5
    (finding,) = diagnose(steps)
    assert (finding.cause, finding.rank, finding.table) == ("all ranks", None, None)
    assert "every rank serves 5.0 times as much" in finding.text


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        ([TableShard(1, 10, 8)], {(1, 0): 4 * 8 * 8}),
        ([TableShard(0, 10, 4), TableShard(1, 10, 4)], {(0, 0): 4 * 4 * 8, (1, 0): 4 * 4 * 8}),
        # Rows 0 to 4 and 5 to 9; of 0, 3, 4, 9 three are the first part's.
        ([TableShard(0, 5, 8), TableShard(1, 5, 8)], {(0, 0): 3 * 8 * 8, (1, 0): 1 * 8 * 8}),
    ],
    ids=["whole", "columns", "rows"],
)
def test_bytes_that_a_rank_serves(
    shards: list[TableShard], expected: dict[tuple[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.collectives.world_size", lambda: 2)
    monkeypatch.setattr("models.collectives.gather_numbers", lambda numbers: numbers[None])
    traffic = Traffic({"a": shards}, {"a": 10}, ["a"], CPU)
    most, load = traffic.announce({"a": torch.tensor([0, 3, 4, 9])})
    assert most == 4
    found = {place: int(load.bytes[place]) for place in expected}
    assert found == expected
    assert int(load.bytes.sum()) == sum(expected.values())


def test_the_hottest_row_is_never_the_padding() -> None:
    unique, counts = torch.tensor([0, 5, 9]), torch.tensor([4, 1, 2])
    assert _hottest(unique, counts) == (9, 2 / 7)


def train_and_tell(*jobs: TrainJob) -> list[tuple[Recorder, Steps | None]]:
    from models.distributed_training import DistributedTraining
    from models.stopping import StopRequest
    from models.trainer import training_environment

    found = []
    with training_environment(CPU):
        for job in jobs:
            recorder = Recorder()
            training = DistributedTraining(job, recorder, CPU)
            training.fit(StopRequest())
            found.append((recorder, training.skew.steps()))
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("skew"), num_users=60, num_items=300)


def _job(world: World, folder: Path, item: dict[str, Any]) -> TrainJob:
    job = make_job(world, folder, sharding="table_wise", batch_size=32, accumulate=1)
    tables = {
        "user": job.tables["user"].model_copy(update={"dim": 4}),
        "item": job.tables["item"].model_copy(update={"dim": 32, **item}),
        "tag": job.tables["tag"].model_copy(update={"sharding": "data_parallel"}),
    }
    return job.model_copy(update={"tables": tables})


def test_the_hot_table_of_a_training_is_named_and_columns_cure_it(
    world: World, tmp_path: Path
) -> None:
    """Real counts of two ranks: the item table lies on one, and is then cut into columns."""
    columns = {"sharding": "column_wise", "column_width": 16}
    jobs = [_job(world, tmp_path / "a", {}), _job(world, tmp_path / "b", columns)]
    first, second = on_ranks(2, train_and_tell, *jobs)
    (recorder, steps), (_, cured) = first
    others = second[0][1]
    assert steps is not None
    assert others is not None
    assert np.array_equal(steps.bytes, others.bytes), "all ranks know the same"
    assert np.array_equal(steps.seconds, others.seconds)
    assert (steps.busy > 0).all()
    assert (steps.busy < 1.1 * steps.seconds).all()
    items = steps.bytes[:, :, list(steps.tables).index("item")].sum(0)
    holder = int(items.argmax())
    assert items[1 - holder] == 0

    # How long steps take on this machine decides nothing here.
    calm = dataclasses.replace(steps, seconds=np.full_like(steps.seconds, 0.01))
    (finding,) = diagnose(calm)
    assert (finding.cause, finding.rank, finding.table) == ("hot table", holder, "item")
    told = dict(recorder.texts)["skew"]
    assert f"rank {holder} serves" in told
    assert "table 'item' (table_wise)" in told
    _, last = recorder.metrics[-1]
    assert last["rank_bytes_max_over_mean"] == pytest.approx(steps.unevenness)
    assert last["rank_bytes_max_over_mean"] > 1.5

    assert cured is not None
    assert cured.unevenness < 1.2
    total = steps.bytes[:, :, list(steps.tables).index("item")].sum()
    assert cured.bytes[:, :, list(cured.tables).index("item")].sum() == total


def test_one_rank_has_nobody_to_compare_with(world: World, tmp_path: Path) -> None:
    recorder = Recorder()
    train(_job(world, tmp_path, {}), recorder)
    assert "skew" not in dict(recorder.texts)
    assert not any("rank_bytes_max_over_mean" in metrics for _, metrics in recorder.metrics)
