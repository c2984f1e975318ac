"""Protects the loop around the steps: a stopped training resumes bitwise, for every way to keep a
table; reports are complete; jobs are not mixed up."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.config import TrainJob
from models.errors import CheckpointError, ExamplesError, ModelError, TrainingStopped
from models.storage import parquet_rows
from models.trainer import train
from tests.models.sinks import Recorder
from tests.models.worlds import World, make_job, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("trainer"), num_users=60, num_items=50)


def _job(world: World, output: Path, **changes: Any) -> TrainJob:
    return make_job(
        world, output, batch_size=32, accumulate=2, epochs=2, log_every=1, checkpoint_every=4,
        **changes,
    )  # fmt: skip


class StopsAt(Recorder):
    """Sends SIGTERM to this process when a step is reported."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        super().log_metrics(step, metrics)
        if step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


def _weights(job: TrainJob) -> dict[str, torch.Tensor]:
    folder = Path(job.output_dir)
    tensors = load_file(folder / "towers.safetensors")
    for path in sorted((folder / "tables").iterdir()):
        tensors[path.stem] = load_file(path)["weight"]
    return tensors


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("two_tower", {}),
        ("two_tower", {"sharding": "row_wise"}),
        ("two_tower", {"sharding": "column_wise", "dim": 64}),
        ("two_tower", {"sharding": "data_parallel"}),
        ("two_tower", {"dtype": "fp16"}),
        ("traditional", {}),
    ],
)
def test_stopped_training_resumes_bitwise(
    world: World, tmp_path: Path, kind: str, table: dict[str, Any]
) -> None:
    jobs = []
    for name in "ab":
        job = _job(world, tmp_path / name, kind=kind)
        tables = {n: t.model_copy(update=table) for n, t in job.tables.items()}
        jobs.append(job.model_copy(update={"tables": tables}))
    undisturbed, stopped = jobs
    whole = train(undisturbed, Recorder())
    before = signal.getsignal(signal.SIGTERM)
    first = StopsAt(10)
    with pytest.raises(TrainingStopped, match="after step 10"):
        train(stopped, first)
    assert signal.getsignal(signal.SIGTERM) is before
    second = Recorder()
    rest = train(stopped, second)
    assert rest.resumed_from == 10
    assert [step for step, _ in first.metrics + second.metrics] == list(range(1, whole.steps + 1))
    expected, found = _weights(undisturbed), _weights(stopped)
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        assert torch.equal(weight, found[name]), name
    if "dtype" in table:
        assert found["item"].dtype == torch.float16


def test_reports(world: World, tmp_path: Path) -> None:
    recorder = Recorder()
    job = _job(world, tmp_path)
    summary = train(job, recorder)
    assert summary.steps == len(recorder.metrics) == recorder.steps[-1][1]
    assert summary.examples == 2 * sum(parquet_rows(file) for file in job.train_files)
    for _, metrics in recorder.metrics:
        assert metrics["examples_per_second"] > 0
        assert 0 <= metrics["input_wait_share"] <= 1
        assert metrics["peak_memory_mib"] > 50
        assert 0 < metrics["rows_per_code"] <= 1
    assert recorder.metrics[-1][1]["epoch"] == 2.0
    text = dict(recorder.texts)["training"]
    assert "tables 0.1 (rowwise_adagrad)" in text
    assert "table item: table_wise" in text
    again = train(job, Recorder())
    assert (again.steps, again.examples) == (0, 0)


def test_weights_and_checkpoints_of_another_job_are_refused(world: World, tmp_path: Path) -> None:
    job = _job(world, tmp_path)
    train(job, Recorder())
    other = job.model_copy(update={"digest": "d2"})
    with pytest.raises(ModelError, match="weights of another job"):
        train(other, Recorder())
    elsewhere = other.model_copy(update={"output_dir": str(tmp_path / "elsewhere")})
    with pytest.raises(CheckpointError, match="another job"):
        train(elsewhere, Recorder())


def test_codes_outside_their_table_are_refused(world: World, tmp_path: Path) -> None:
    job = _job(world, tmp_path)
    smaller = job.model_copy(update={"table_rows": {**job.table_rows, "tag": 3}})
    with pytest.raises(ExamplesError, match="column 'tags' has code"):
        train(smaller, Recorder())
