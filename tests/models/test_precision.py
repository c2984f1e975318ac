"""Protects mixed precision: short types stay close to float32, a scaled loss changes nothing but
what would have vanished, and a step whose gradient overflows moves nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models import distributed_training, precision
from models.config import TrainJob
from models.precision import LossScale, layer_type
from models.trainer import train
from tests.models.sinks import Recorder
from tests.models.workers import start
from tests.models.worlds import World, make_job, make_model, make_world

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("precision"), num_users=60, num_items=50)


def _job(world: World, output: Path, layers: str, **changes: Any) -> TrainJob:
    settings = {"batch_size": 32, "accumulate": 4, "log_every": 1, "precision": layers, **changes}
    return make_job(world, output, **settings)


def _weights(job: TrainJob) -> dict[str, torch.Tensor]:
    folder = Path(job.output_dir)
    return {
        path.stem + "/" + name: weight
        for path in (folder / "towers.safetensors", *sorted((folder / "tables").iterdir()))
        for name, weight in load_file(path).items()
    }


@pytest.mark.parametrize("pool", ["micro_batch", "macro_batch"])
@pytest.mark.parametrize(("layers", "tolerance"), [("bf16", 0.08), ("fp16", 0.01)])
def test_short_types_stay_close_to_float32(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: str,
    tolerance: float,
    pool: str,
) -> None:
    """With SGD, whose steps are in proportion to the gradients."""
    # So low that no step of so few is skipped.
    monkeypatch.setattr(precision, "INITIAL_SCALE", 2.0**8)
    optimizer = {"dense": "sgd", "sparse": "sgd", "learning_rate": 0.5, "sparse_lr_scale": 2.0}
    loss = {"num_negatives": 32, "negatives": "tfidf", "pool": pool}
    jobs, recorders = [], []
    for name in ("fp32", layers):
        jobs.append(_job(world, tmp_path / name, name, optimizer=optimizer, loss=loss))
        recorders.append(Recorder())
        train(jobs[-1], recorders[-1])
    initial = _job(
        world, tmp_path / "0", "fp32", loss=loss, optimizer={**optimizer, "learning_rate": 1e-30}
    )
    train(initial, Recorder())
    start, exact, short = (_weights(job) for job in (initial, *jobs))
    moved = apart = 0.0
    for name, weight in exact.items():
        assert short[name].dtype == torch.float32
        moved += float((weight - start[name]).double().square().sum())
        apart += float((short[name] - weight).double().square().sum())
    assert 0 < (apart / moved) ** 0.5 < tolerance
    losses = [recorder.metrics[-1][1]["loss"] for recorder in recorders]
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
    assert (
        f"layers in {'bfloat16' if layers == 'bf16' else 'float16'}"
        in dict(recorders[1].texts)["training"]
    )
    last = recorders[1].metrics[-1][1]
    assert last.get("skipped_steps") == (0 if layers == "fp16" else None)


@pytest.mark.parametrize("pool", ["micro_batch", "macro_batch"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_scale_is_exact_through_accumulation(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pool: str,
    clip_norm: float | None,
) -> None:
    """bfloat16 has the range to compute with and without: every bit of every weight is the same."""
    loss = {"num_negatives": 32, "negatives": "tfidf", "pool": pool}
    optimizer = {"clip_norm": clip_norm}
    plain = _job(world, tmp_path / "a", "bf16", loss=loss, optimizer=optimizer)
    train(plain, Recorder())
    monkeypatch.setattr(distributed_training, "needs_scale", lambda layers: True)
    scaled = _job(world, tmp_path / "b", "bf16", loss=loss, optimizer=optimizer)
    recorder = Recorder()
    train(scaled, recorder)
    assert recorder.metrics[-1][1]["loss_scale"] == 2.0**16
    for name, weight in _weights(plain).items():
        assert torch.equal(weight, _weights(scaled)[name]), name


def test_small_gradients_vanish_without_a_scale(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the scale is for: cold logits leave gradients below float16's smallest number."""
    model = make_model(temperature=10.0)
    optimizer = {"dense": "sgd", "sparse": "sgd", "learning_rate": 1.0}
    moved = {}
    for name, scale in (("exact", None), ("scaled", 2.0**16), ("plain", 2.0**-10)):
        if scale is not None:
            monkeypatch.setattr(precision, "INITIAL_SCALE", scale)
        layers = "fp32" if scale is None else "fp16"
        job = _job(world, tmp_path / name, layers, model=model, optimizer=optimizer)
        train(job, Recorder())
        moved[name] = _weights(job)["towers/item.mlp.0.weight"]
    scaled, plain = ((moved[n] - moved["exact"]).norm() for n in ("scaled", "plain"))
    assert float(plain) > 5 * float(scaled)


def test_a_step_that_overflows_moves_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = {"learning_rate": 0.01}
    monkeypatch.setattr(precision, "INITIAL_SCALE", 2.0**100)
    recorder = Recorder()
    job = _job(world, tmp_path / "all", "fp16", optimizer=optimizer)
    train(job, recorder)
    steps = len(recorder.metrics)
    assert recorder.metrics[-1][1]["skipped_steps"] == steps
    assert recorder.metrics[-1][1]["loss_scale"] == 2.0 ** (100 - steps)
    still = _job(world, tmp_path / "0", "fp32", optimizer={"learning_rate": 1e-30})
    train(still, Recorder())
    for name, weight in _weights(still).items():
        torch.testing.assert_close(_weights(job)[name], weight, rtol=0, atol=1e-20, msg=name)
    # From a scale that is a little too high the training finds its way.
    monkeypatch.setattr(precision, "INITIAL_SCALE", 2.0**18)
    recorder = Recorder()
    job = _job(world, tmp_path / "some", "fp16", optimizer=optimizer)
    train(job, recorder)
    assert 0 < recorder.metrics[-1][1]["skipped_steps"] < steps / 2
    assert recorder.metrics[-1][1]["loss"] < recorder.metrics[0][1]["loss"]
    for name, weight in _weights(job).items():
        assert torch.isfinite(weight).all(), name


def test_the_scale_grows_after_many_good_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_GROW_AFTER", 3)
    scale = LossScale(True, CPU)
    first = scale.factor
    for _ in range(3):
        gradient = torch.tensor([2.0 * scale.factor])
        assert scale.unscale([gradient])
        assert gradient.item() == 2.0
    assert scale.factor == 2 * first
    assert not scale.unscale([torch.tensor([1.0]), torch.tensor([torch.inf])])
    assert (scale.factor, scale.skipped) == (first, 1)
    assert not scale.unscale([torch.tensor([torch.nan])])
    assert (scale.factor, scale.skipped) == (first / 2, 2)
    inactive = LossScale(False, CPU)
    assert inactive.unscale([torch.tensor([torch.inf])])
    assert inactive.factor == 1.0


def test_auto_asks_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert layer_type("auto", CPU) is None
    assert layer_type("bf16", CPU) is torch.bfloat16
    device = torch.device("meta")
    for known, expected in (
        ({torch.float16, torch.bfloat16, torch.float32}, torch.bfloat16),
        ({torch.float16, torch.float32}, torch.float16),
        ({torch.float32}, None),
    ):
        monkeypatch.setattr(
            torch.accelerator,
            "get_device_capability",
            lambda _, known=known: {"supported_dtypes": known},
        )
        assert layer_type("auto", device) is expected
    assert layer_type("fp32", device) is None


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_two_ranks_skip_the_same_steps(world: World, tmp_path: Path) -> None:
    """A gradient that overflows on one rank is not taken on the other either."""
    optimizer = {"dense": "sgd", "sparse": "sgd", "learning_rate": 0.5, "sparse_lr_scale": 2.0}
    loss = {"num_negatives": 32, "negatives": "tfidf", "pool": "macro_batch"}
    one = _job(world, tmp_path / "one", "fp16", optimizer=optimizer, loss=loss)
    recorder = Recorder()
    train(one, recorder)
    skipped = recorder.metrics[-1][1]["skipped_steps"]
    assert skipped > 0, "the first scale is to be too high"
    two = _job(world, tmp_path / "two", "fp16", optimizer=optimizer, loss=loss, sharding="row_wise")
    process = start(two, tmp_path / "run", ranks=2)
    output, _ = process.communicate(timeout=250)
    assert process.returncode == 0, (tmp_path / "run/stderr.txt").read_text()[-4000:]
    reports = [json.loads(line) for line in output.splitlines() if '"skipped_steps"' in line]
    assert reports[-1]["skipped_steps"] == skipped
    for name, weight in _weights(one).items():
        torch.testing.assert_close(_weights(two)[name], weight, rtol=0.05, atol=0.02, msg=name)
