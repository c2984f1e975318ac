"""Protects checkpoints from ranks that were replaced: of an earlier attempt, or of this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from models.checkpoint import Checkpoints
from models.errors import CheckpointError, FencedError
from models.fence import ATTEMPT, Fence, raise_fence


@pytest.fixture
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _state(value: float) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((2, 2), value)}


def test_a_later_attempt_shuts_out_an_earlier_one(tmp_path: Path) -> None:
    location = str(tmp_path / "c")
    first = Fence(location, 1)
    first.enter()
    first.check()
    raise_fence(location, 2)
    with pytest.raises(FencedError, match=r"attempt 1 .* replaced by attempt 2"):
        first.check()
    with pytest.raises(FencedError, match=r"attempt 1 .* replaced by attempt 2"):
        Fence(location, 1).enter()
    # Submitting is enough: the later ranks need not have started.
    second = Fence(location, 2)
    second.enter()
    second.check()


def test_new_ranks_of_an_attempt_shut_out_those_before(tmp_path: Path) -> None:
    before, after = (Fence(str(tmp_path / "c"), 1) for _ in range(2))
    names = [before.enter(), after.enter()]
    assert names[0] != names[1]
    after.check()
    with pytest.raises(FencedError, match=names[1]):
        before.check()


def test_a_late_write_of_an_earlier_attempt_is_taken_back(tmp_path: Path) -> None:
    late, now = Fence(str(tmp_path / "c"), 1), Fence(str(tmp_path / "c"), 2)
    now.enter()
    # It had looked before the later attempt began.
    late._write()
    now.check()
    with pytest.raises(FencedError):
        late.check()


def test_without_a_number_there_is_no_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ATTEMPT, raising=False)
    fence = Fence(str(tmp_path / "c"))
    assert fence.enter() == ""
    fence.check()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_world_of_one")
@pytest.mark.parametrize("when", ["before the save", "while it is written"])
def test_a_late_attempt_neither_writes_nor_removes_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    location = str(tmp_path / "c")
    monkeypatch.setenv(ATTEMPT, "1")
    late = Checkpoints(location, "d", keep=1)
    late.save(3, _state(3.0), wait=True)
    if when == "before the save":
        raise_fence(location, 2)
    else:
        complete = late._complete

        def overtaken(*arguments: Any) -> None:
            raise_fence(location, 2)
            complete(*arguments)

        monkeypatch.setattr(late, "_complete", overtaken)
    with pytest.raises(CheckpointError, match="replaced by attempt 2"):
        late.save(9, _state(9.0), wait=True)

    monkeypatch.setenv(ATTEMPT, "2")
    now = Checkpoints(location, "d", keep=1)
    assert now.latest() == 3
    loaded = _state(0.0)
    now.load(3, loaded)
    assert torch.equal(loaded["weights"], _state(3.0)["weights"])
    # The same step again, beside what the late attempt may still be writing.
    now.save(9, _state(8.0), wait=True)
    now.load(9, loaded)
    assert torch.equal(loaded["weights"], _state(8.0)["weights"])
    assert now.latest() == 9
    with pytest.raises(CheckpointError, match="replaced by attempt 2"):
        late.require_place()
    assert len(list((tmp_path / "c").glob("step-*/complete.json"))) == 1
