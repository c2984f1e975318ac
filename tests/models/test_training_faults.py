"""Protects restarts: a training that was killed or stopped ends with the weights of one that
was not, having seen each example once an epoch."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from models.config import TrainJob
from models.worker import STOPPED
from tests.models.workers import finish, kill, run, start, wait_for
from tests.models.worlds import World, make_job, make_world

pytestmark = [
    pytest.mark.faults,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("faults"), num_users=150)


def _job(world: World, output: Path, kind: str = "two_tower") -> TrainJob:
    return make_job(
        world, output, kind=kind, batch_size=32, accumulate=3, epochs=2, checkpoint_every=5,
        log_every=1, keep_checkpoints=2,
    )  # fmt: skip


def _weights(job: TrainJob) -> dict[str, torch.Tensor]:
    folder = Path(job.output_dir)
    tensors = load_file(folder / "towers.safetensors")
    for path in sorted((folder / "tables").iterdir()):
        tensors[path.stem] = load_file(path)["weight"]
    return tensors


def _differences(first: TrainJob, second: TrainJob) -> dict[str, float]:
    a, b = _weights(first), _weights(second)
    assert a.keys() == b.keys()
    return {name: float((a[name] - b[name]).abs().max()) for name in a}


def _checkpointed(job: TrainJob) -> bool:
    folder = Path(job.checkpoint_dir)
    return any(folder.glob("step-*/complete.json")) or (folder / "latest.pt").exists()


@pytest.mark.parametrize("kind", ["two_tower", "traditional"])
def test_killed_training_ends_bitwise_equal(tmp_path: Path, world: World, kind: str) -> None:
    undisturbed = _job(world, tmp_path / "a", kind)
    whole = run(undisturbed, tmp_path / "a")
    killed = _job(world, tmp_path / "b", kind)
    process = start(killed, tmp_path / "b")
    wait_for(lambda: _checkpointed(killed), "a checkpoint", timeout=200)
    kill(process)
    assert not (Path(killed.output_dir) / "weights.json").exists()
    summary = run(killed, tmp_path / "b")
    assert 0 < summary["resumed_from"] < summary["steps"] == whole["steps"]
    # The rest of the examples, each once: none again, none left out.
    seen_before = summary["resumed_from"] // (whole["steps"] // 2) * (whole["examples"] // 2)
    in_epoch = summary["resumed_from"] % (whole["steps"] // 2) * 32 * 3
    assert summary["examples"] == whole["examples"] - seen_before - in_epoch
    assert set(_differences(undisturbed, killed).values()) == {0.0}


@pytest.mark.parametrize("bank", [0, 300])
def test_training_killed_inside_a_save_ends_bitwise_equal(
    tmp_path: Path, world: World, bank: int
) -> None:
    """The save has begun and is not complete: the one before it is what is resumed from."""

    def job(name: str) -> TrainJob:
        made = _job(world, tmp_path / name)
        loss = made.training.loss.model_copy(update={"bank": bank})
        training = made.training.model_copy(update={"loss": loss})
        # Rows that no example has make a save last long enough to be met.
        rows = {**made.table_rows, "user": 600_000}
        return made.model_copy(update={"training": training, "table_rows": rows})

    undisturbed, killed = job("a"), job("b")
    whole = run(undisturbed, tmp_path / "a")
    process = start(killed, tmp_path / "b")
    folder = Path(killed.checkpoint_dir)

    def inside_a_later_save() -> bool:
        steps = sorted(folder.glob("step-*"))
        complete = [step for step in steps if (step / "complete.json").exists()]
        return bool(complete) and steps[-1] not in complete

    wait_for(inside_a_later_save, "a second save", timeout=200)
    kill(process)
    complete = sorted(path.parent.name for path in folder.glob("step-*/complete.json"))
    assert sorted(path.name for path in folder.glob("step-*"))[-1] not in complete
    summary = run(killed, tmp_path / "b")
    assert f"step-{summary['resumed_from']:010d}" == complete[-1]
    assert summary["steps"] == whole["steps"]
    assert set(_differences(undisturbed, killed).values()) == {0.0}


def test_stopped_training_keeps_its_last_step(tmp_path: Path, world: World) -> None:
    undisturbed, stopped = _job(world, tmp_path / "a"), _job(world, tmp_path / "b")
    run(undisturbed, tmp_path / "a")
    process = start(stopped, tmp_path / "b")
    assert process.stdout is not None
    last = 0
    for line in process.stdout:
        last = json.loads(line).get("step", 0)
        if last >= 4:
            process.send_signal(signal.SIGTERM)
            break
    process.communicate(timeout=200)
    assert process.returncode == STOPPED
    summary = finish(start(stopped, tmp_path / "b"), tmp_path / "b")
    assert summary["resumed_from"] >= last
    assert set(_differences(undisturbed, stopped).values()) == {0.0}


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_resume_on_another_number_of_ranks(
    tmp_path: Path, world: World, before: int, after: int
) -> None:
    undisturbed, moved = _job(world, tmp_path / "a"), _job(world, tmp_path / "b")
    run(undisturbed, tmp_path / "a")
    process = start(moved, tmp_path / "b", ranks=before)
    wait_for(lambda: _checkpointed(moved), "a checkpoint", timeout=200)
    kill(process)
    summary = run(moved, tmp_path / "b", ranks=after)
    assert summary["resumed_from"] > 0
    assert summary["world_size"] == after
    assert max(_differences(undisturbed, moved).values()) < 1e-4


def test_finished_job_returns_at_once(tmp_path: Path, world: World) -> None:
    job = _job(world, tmp_path, "traditional")
    run(job, tmp_path)
    again = run(job, tmp_path)
    assert again["examples"] == 0
