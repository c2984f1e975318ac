"""Protects checkpoints: complete or absent, this job's or refused, the newest kept; and state
that is changed while it is being written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fsspec.implementations.local import LocalFileSystem
from torch._C._distributed_c10d import HashStore

from models.checkpoint import MARKER, Checkpoints
from models.errors import CheckpointError


@pytest.fixture(autouse=True)
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _state(value: float) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((4, 3), value), "nested.step": torch.tensor(value)}


def _load(checkpoints: Checkpoints, step: int) -> float:
    state = _state(-1.0)
    checkpoints.load(step, state)
    value = float(state["nested.step"])
    assert torch.equal(state["weights"], torch.full((4, 3), value))
    return value


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_newest_is_loaded_and_older_ones_go(tmp_path: Path, scheme: str) -> None:
    checkpoints = Checkpoints(f"{scheme}{tmp_path}/c", "d", keep=2)
    assert checkpoints.latest() is None
    for step in (3, 6, 9):
        checkpoints.save(step, _state(float(step)), wait=True)
    assert checkpoints.latest() == 9
    assert _load(checkpoints, 9) == 9.0
    kept = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert kept == ["step-0000000006", "step-0000000009"]


def test_state_may_change_while_it_is_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), "d", keep=1)
    state = {"weights": torch.zeros(2000, 1000)}
    checkpoints.save(1, state)
    state["weights"].fill_(7.0)
    checkpoints.finish()
    loaded = torch.ones(2000, 1000)
    checkpoints.load(1, {"weights": loaded})
    assert float(loaded.abs().max()) == 0.0


def test_unfinished_and_damaged_ones_are_passed_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), "d", keep=5)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, _state(float(step)), wait=True)
    (tmp_path / "step-0000000004" / MARKER).unlink()
    part = next((tmp_path / "step-0000000003").glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    next((tmp_path / "step-0000000002").glob("*.distcp")).unlink()
    assert checkpoints.latest() == 1
    assert _load(checkpoints, 1) == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001"]


def test_another_jobs_checkpoint_is_refused(tmp_path: Path) -> None:
    Checkpoints(str(tmp_path), "theirs", keep=1).save(1, _state(1.0), wait=True)
    with pytest.raises(CheckpointError, match="another job"):
        Checkpoints(str(tmp_path), "ours", keep=1).latest()
    marker = json.loads((tmp_path / "step-0000000001" / MARKER).read_text())
    assert marker["digest"] == "theirs"


def test_a_failed_write_is_reported(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    checkpoints = Checkpoints(str(tmp_path / "c"), "d", keep=1)
    (tmp_path / "c").rmdir()
    (tmp_path / "c").write_text("a file where the folder was")
    with pytest.raises((CheckpointError, OSError)):
        checkpoints.save(1, _state(1.0), wait=True)


def test_an_old_one_that_cannot_be_removed_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that refuses a removal, of the marker or of the rest, is asked again later."""
    checkpoints = Checkpoints(str(tmp_path), "d", keep=1)
    remove = LocalFileSystem.rm
    refused: list[str] = []

    def stubborn(self: LocalFileSystem, path: str, **options: object) -> None:
        if len(refused) < 2 and ("step-0000000001" in path or path.endswith("2")):
            refused.append(path)
            raise PermissionError(path)
        remove(self, path, **options)

    monkeypatch.setattr(LocalFileSystem, "rm", stubborn)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, _state(float(step)), wait=True)
        assert _load(checkpoints, step) == float(step)
    assert len(refused) == 2
    assert "cannot be removed" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000004"]
    assert checkpoints.latest() == 4
