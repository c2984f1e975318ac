"""Protects the figures of memory: what is made and freed is counted, each memory once, and a
training's report names every component with its bytes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch
from torch import nn

from models.memory_use import MemoryUse, NewTensors, bytes_of
from models.trainer import train
from tests.models.sinks import Recorder
from tests.models.worlds import make_job, make_world

KIB = 1024


def test_peak_counts_what_lives_at_the_same_time() -> None:
    given = torch.zeros(256)
    with NewTensors() as new:
        first = given + 1  # 1 KiB
        second = torch.cat([first, first])  # 2 KiB
        view = second[:10]
        given.add_(1)  # not new
        del first
        third = second * 2  # 2 KiB
    assert new.peak == 4 * KIB
    assert new.live == 4 * KIB
    del second, third
    assert new.live == 2 * KIB, "a view keeps the memory it looks at"
    del view
    assert new.live == 0


def test_peak_sees_the_backward_pass_and_recomputation() -> None:
    from torch.utils.checkpoint import checkpoint

    layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.SiLU()) for _ in range(6)])
    x = torch.randn(1000, 64, requires_grad=True)

    def peak(recompute: bool) -> int:
        with NewTensors() as new:
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=False) if recompute else layer(y)
            y.sum().backward()
        return new.peak

    activation = 1000 * 64 * 4
    kept, saved = peak(False), peak(True)
    assert kept >= 12 * activation
    assert saved < 0.75 * kept


def test_shared_memory_counts_once() -> None:
    whole = torch.zeros(100)
    assert bytes_of([whole, whole[:10], whole.view(10, 10)]) == 400


def test_training_reports_bytes_by_component(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", num_users=60, num_items=50)
    reports = {}
    for dtype in ("fp32", "fp16"):
        job = make_job(world, tmp_path / dtype, log_every=1)
        tables = {n: t.model_copy(update={"dtype": dtype}) for n, t in job.tables.items()}
        recorder = Recorder()
        train(job.model_copy(update={"tables": tables}), recorder)
        (report,) = [m for _, m in recorder.metrics if "memory_tables_mib" in m]
        reports[dtype] = {k: v * 2**20 for k, v in report.items() if k.startswith("memory_")}
        text = dict(recorder.texts)["memory"]
        assert text.startswith("activations")
        assert len(text.splitlines()) == len(MemoryUse.__dataclass_fields__)
    rows = world.table_rows
    full = sum(rows[n] * d * 4 for n, d in (("user", 16), ("item", 16), ("tag", 8)))
    assert reports["fp32"]["memory_tables_mib"] == full
    assert reports["fp16"]["memory_tables_mib"] == full / 2
    # One accumulator a row, and one for each parameter of the towers.
    towers = reports["fp32"]["memory_towers_mib"]
    least = sum(rows.values()) * 4 + towers
    assert least <= reports["fp32"]["memory_optimizer_mib"] <= least + 100
    assert reports["fp32"]["memory_input_mib"] > 2 * 256 * 8


def test_trace_of_some_steps(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", num_users=60, num_items=50)
    job = make_job(world, tmp_path, accumulate=2, trace_steps=2)
    train(job, Recorder())
    (path,) = (tmp_path / "traces").iterdir()
    assert path.name == "trace-000002.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [event.get("name", "") for event in events]
    assert "_SampledSoftmax" in names
    steps = [name for name in names if name.startswith("Optimizer.step")]
    assert len(steps) == 2
