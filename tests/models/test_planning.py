"""Protects the plan: expected work is what a training really does, the formula is that of
docs/planning.md, and what is measured on a machine gives back the times that it came from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from models import accumulation
from models.accumulation import StepOutcome
from models.calibration import costs_of, measure_link
from models.config import EmbeddingTableSettings, ModelSettings, TrainingSettings
from models.expected_work import DataShape, StepWork, step_work
from models.memory_estimate import TableShard, place_tables
from models.planning import Cluster, Costs, Job, predict, step_seconds
from models.profiling import profile_training
from models.rehearsal import rehearsal_job

MODEL = {
    "user": {
        "features": [
            {"name": "uid", "table": "user"},
            {"name": "recent", "table": "item", "kind": "history", "max_length": 12},
        ]
    },
    "item": {
        "features": [
            {"name": "iid", "table": "item"},
            {"name": "tags", "table": "tag", "kind": "list"},
        ]
    },
    "dim": 16,
}
DATA = DataShape(items=2000, elements={"recent": 5.0, "tags": 2.0})
ROWS = {"user": 3001, "item": 2001, "tag": 301}


def _job(sharding: str = "auto", **training: Any) -> Job:
    tables = {
        "user": EmbeddingTableSettings(dim=16, sharding=sharding),  # type: ignore[arg-type]
        "item": EmbeddingTableSettings(dim=16, sharding=sharding),  # type: ignore[arg-type]
        "tag": EmbeddingTableSettings(dim=8, sharding=sharding),  # type: ignore[arg-type]
    }
    settings = {
        "batch_size": 256,
        "accumulate": 4,
        "threads": 1,
        "loss": {"negatives": "uniform", "num_negatives": 64},
        **training,
    }
    return Job(
        ModelSettings.model_validate(MODEL),
        tables,
        ROWS,
        TrainingSettings.model_validate(settings),
        DATA,
    )


def _load(job: Job, ranks: int) -> StepWork:
    training = job.training_of(ranks)
    placement = place_tables(job.tables, job.table_rows, ranks)
    return step_work(job.model, job.tables, ROWS, training, ranks, placement, job.data)


def test_expected_work_is_what_a_training_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(sharding="data_parallel")
    seen: list[tuple[StepOutcome, int]] = []
    run = accumulation.MacroStep.run

    def watched(self: Any, macro: Any) -> StepOutcome:
        outcome = run(self, macro)
        width = sum(
            len(self._distinct[n]._values[:0]) + self._distinct[n].count * job.tables[n].dim * 4
            for n in job.tables
        )
        seen.append((outcome, width))
        return outcome

    monkeypatch.setattr(accumulation.MacroStep, "run", watched)
    profile_training(rehearsal_job(job, tmp_path, 6), 4)
    load = _load(job, 1)
    assert len(seen) == 6
    for outcome, fetched in seen:
        assert load.codes == pytest.approx(outcome.codes, rel=0.05)
        assert load.fetched_bytes == pytest.approx(fetched, rel=0.05)
        columns = load.score_flops / (2 * 3 * 16 * load.examples)
        assert columns * 4 == pytest.approx(outcome.columns, rel=0.05)


def test_a_rank_has_the_same_work_in_a_larger_world() -> None:
    job = _job(sharding="row_wise")
    one, four = _load(job, 1), _load(job, 4)
    assert four.examples == 4 * one.examples
    for name in ("codes", "tower_flops", "score_flops"):
        assert getattr(four, name) == pytest.approx(getattr(one, name), rel=1e-6)
    # Pools are as large as before, so there are more of them, and ranks share each.
    assert four.pools == 4 * one.pools
    assert one.rows_bytes == one.merged_bytes == one.vector_bytes == 0
    by_batch = _load(dataclasses.replace(job, grow="batch"), 4)
    assert by_batch.pools == one.pools
    assert by_batch.score_flops > 2 * one.score_flops


def test_a_table_on_one_rank_is_asked_by_all() -> None:
    """Bytes of the busiest rank, counted by hand: its table's rows for each of the others."""
    job = _job()
    whole = {
        "user": [TableShard(0, ROWS["user"], 16)],
        "item": [TableShard(1, ROWS["item"], 16)],
        "tag": [TableShard(2, ROWS["tag"], 8)],
    }
    busy = step_work(job.model, job.tables, ROWS, job.training_of(8), 8, whole, job.data)
    spread = _job(sharding="row_wise")
    even = _load(dataclasses.replace(spread, data=dataclasses.replace(DATA, exponent=0.0)), 8)
    hot = _load(spread, 8)
    assert busy.fetched_bytes == hot.fetched_bytes
    # Of a row: itself and its gradient in float32, and a number of 4 bytes.
    rows_of_item = busy.rows_bytes / 7 / (2 * 16 * 4 + 4)
    assert 0.2 * ROWS["item"] < rows_of_item < ROWS["item"]
    # Spread rows that are all alike: a rank gets what it asks for but an eighth, which it has.
    everything = even.fetched_bytes * 2 + even.fetched_bytes / (16 * 4) * 4
    assert even.rows_bytes == pytest.approx(everything * 7 / 8, rel=0.05)
    # Hot rows lie together: the first rank serves most, though less than a whole table.
    assert 1.1 * hot.fetched_bytes / even.fetched_bytes * even.rows_bytes < hot.rows_bytes
    assert hot.rows_bytes < busy.rows_bytes


LOAD = StepWork(
    examples=1000,
    pools=10,
    codes=100,
    pooled_bytes=2000,
    fetched_bytes=300,
    moved_bytes=400,
    merged_bytes=50,
    tower_flops=5000,
    score_flops=6000,
    known=70,
    rows_bytes=800,
    pooled_exchange_bytes=9000,
    vector_bytes=900,
    tower_bytes=1000,
)
COSTS = Costs(
    example=1.0,
    code=2.0,
    fetched_byte=3.0,
    pooled_byte=4.0,
    tower_flop=5.0,
    score_flop=6.0,
    known=7.0,
    moved_byte=8.0,
    micro_batch=9.0,
)


def test_the_formula_by_hand() -> None:
    cluster = Cluster(COSTS, link_bandwidth=10.0, link_latency=0.5)
    found = step_seconds(LOAD, cluster, hosts=4, ranks=4)
    assert found == {
        "encoding": 200.0,
        "fetching rows": 3.0 * 350,
        "towers": 25000.0 + 8000.0,
        "choosing negatives": 490.0,
        "scores and loss": 36000.0,
        "updating": 3200.0 + 150.0,
        "each micro-batch": 90.0,
        "reading": 1000.0,
        "exchanging rows": 80.0 + 4 * 0.5 * 2,
        "exchanging vectors": 90.0 + 2 * 0.5 * 2,
        "adding up towers": 100.0 + 2 * 0.5 * 2,
    }
    alone = step_seconds(LOAD, cluster, hosts=1, ranks=1)
    assert not [name for name in alone if "exchang" in name or "adding" in name]


def test_ranks_of_a_host_share_its_cores_and_its_link() -> None:
    cluster = Cluster(COSTS, link_bandwidth=10.0, link_latency=0.0, local_latency=0.0)
    shared = dataclasses.replace(cluster, cores_a_rank=0.5, local_bandwidth=20.0)
    found = step_seconds(LOAD, shared, hosts=1, ranks=4)
    assert found["encoding"] == 400.0
    assert found["exchanging rows"] == 800 / (20.0 / 2)
    # Two ranks a host on four hosts: 6 of 7 others are away, over half a link each.
    crowded = dataclasses.replace(cluster, ranks_a_host=2, local_bandwidth=1e9)
    found = step_seconds(LOAD, crowded, hosts=4, ranks=8)
    assert found["exchanging rows"] == pytest.approx(800 * (6 / 7) * 2 / 10.0)


def test_reading_beside_the_computation_costs_what_does_not_fit() -> None:
    cluster = Cluster(COSTS, overlapped_reading=True)
    assert step_seconds(LOAD, cluster, 1, 1)["reading"] == 0.0
    slow = dataclasses.replace(COSTS, example=100.0)
    computing = sum(step_seconds(LOAD, cluster, 1, 1).values())
    late = step_seconds(LOAD, dataclasses.replace(cluster, costs=slow), 1, 1)["reading"]
    assert late == pytest.approx(100_000 - computing)


def test_efficiency_and_price() -> None:
    # Every rank takes part in every pool, so that what each costs would grow with the ranks.
    costs = dataclasses.replace(Costs.of_machine(45e9, 14e9), micro_batch=0.0, example=0.0)
    free = Cluster(costs, link_bandwidth=1e18, link_latency=0.0, price=36.0)
    job = _job(sharding="row_wise")
    alone, many = predict(job, free, 1), predict(job, free, 64)
    assert alone.efficiency == pytest.approx(1.0)
    assert many.examples_per_second > 20 * alone.examples_per_second
    slow = predict(job, dataclasses.replace(free, link_bandwidth=1e6), 64)
    assert slow.efficiency < 0.5 * many.efficiency
    # 36 an hour is a cent a second for each host.
    assert many.price == pytest.approx(0.01 * 64 * 1e6 / many.examples_per_second)
    assert many.memory.tables < alone.memory.tables / 30


def test_measured_costs_give_back_the_time_that_they_come_from() -> None:
    load = _load(_job(), 1)
    seconds = {
        "encoding": 0.02,
        "fetching rows": 0.01,
        "towers forward": 0.2,
        "towers backward": 0.3,
        "choosing negatives": 0.02,
        "scores and loss": 0.4,
        "updating": 0.05,
        "waiting for input": 0.01,
        "everything else": 0.09,
    }
    costs = costs_of(seconds, load, micro_batch=0.01)
    found = step_seconds(load, Cluster(costs), 1, 1)
    assert sum(found.values()) == pytest.approx(sum(seconds.values()), rel=0.01)
    assert found["each micro-batch"] == pytest.approx(0.04)


@pytest.mark.slow
@pytest.mark.integration
def test_two_processes_exchange_bytes() -> None:
    link = measure_link(1 << 20)
    assert 1e6 < link.bandwidth < 1e12
    assert 0 < link.latency < 1
