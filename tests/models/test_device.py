"""Protects the rule that one file alone knows what the machine computes on, and that it asks
`torch.accelerator`: with a made-up accelerator the ranks take their devices, and batches are copied
beside the computation and waited for before they are used."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models import device as device_module
from models.batch import Batch, UserInputs
from models.device import communication_backend, compute_device, use_threads
from models.device_feed import on_device
from models.jagged import Jagged
from models.reader import MacroBatch, MicroBatch

ROOT = Path(__file__).parents[2]
VENDOR = re.compile(r"\b(cuda|nccl|rocm|hip|xpu|mps|hpu|nvidia|tpu)\b", re.IGNORECASE)


def test_no_other_file_names_a_vendor() -> None:
    allowed = ROOT / "models/device.py"
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("models", "tasks", "dags")
        for path in (ROOT / folder).rglob("*.py")
        if path != allowed
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if VENDOR.search(line)
    }
    assert found == set()
    assert VENDOR.search('torch.device("cuda")'), "the search must be able to find something"


@pytest.mark.parametrize(
    ("device", "backend"),
    [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl"), ("xpu", "cpu:gloo,xpu:xccl")],
)
def test_backend_follows_the_device(device: str, backend: str) -> None:
    assert communication_backend(torch.device(device)) == backend


def test_threads_are_the_cores_divided_by_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    try:
        assert use_threads(None) == torch.get_num_threads() == 2
        assert use_threads(3) == torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class _Accelerator:
    """An accelerator that does nothing and writes down what it is told.

    PyTorch's `meta` device stands for its memory: tensors can be sent there, and nothing is in
    them.
    """

    kind = torch.device("meta")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        accelerator = torch.accelerator
        monkeypatch.setattr(accelerator, "current_accelerator", self._current)
        monkeypatch.setattr(accelerator, "device_count", lambda: 4)
        monkeypatch.setattr(
            accelerator, "set_device_index", lambda n: self.said.append(f"take {n}")
        )
        monkeypatch.setattr(accelerator, "max_memory_allocated", lambda device: 12345)
        monkeypatch.setattr(accelerator, "current_stream", lambda device: self)
        monkeypatch.setattr(torch, "Stream", lambda device: self)
        monkeypatch.setattr(Tensor, "pin_memory", self._pin)
        monkeypatch.setattr(Tensor, "record_stream", self._record)

    def _current(self, check_available: bool = False) -> torch.device:
        assert check_available, "an accelerator that cannot be used is none"
        return self.kind

    def _take(self, index: int) -> None:
        self.said.append(f"take {index}")

    def _pin(self, *_: Any) -> Tensor:
        self.said.append("lock")
        return torch.zeros(1)

    def _record(self, *_: Any) -> None:
        self.said.append("keep")

    def __enter__(self) -> None:
        self.said.append("copy")

    def __exit__(self, *_: object) -> None:
        pass

    def record_event(self) -> str:
        self.said.append("sent")
        return f"event {self.said.count('sent')}"

    def wait_event(self, event: str) -> None:
        self.said.append(f"wait for {event}")


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> _Accelerator:
    return _Accelerator(monkeypatch)


def test_ranks_take_the_devices_that_torch_names(
    accelerator: _Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "6")
    assert compute_device() == torch.device("meta", 2)
    assert accelerator.said == ["take 2"]
    assert device_module.peak_memory_bytes(compute_device()) == 12345


def test_without_an_accelerator_it_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert compute_device() == torch.device("cpu")


def _batches(log: list[str]) -> Generator[MacroBatch, None, None]:
    for step in range(3):
        log.append(f"read {step}")
        bags = Jagged(torch.zeros(4), torch.arange(3))
        users = UserInputs(torch.zeros(2), {"id": bags}, bags, None, {"age": torch.zeros(2)})
        local = Batch(users, torch.zeros(2), torch.ones(2))
        micro = MicroBatch(torch.zeros(2), torch.zeros(2), 0, local)
        yield MacroBatch(step, 0, (micro,), 2, 2.0)


def test_a_batch_is_copied_during_the_step_before_and_waited_for(
    accelerator: _Accelerator,
) -> None:
    said = accelerator.said
    steps = []
    for macro in on_device(_batches(said), accelerator.kind):
        assert {x.device.type for x in macro.tensors()} == {"meta"}
        steps.append(macro.step)
        said.append(f"compute {macro.step}")
    assert steps == [0, 1, 2]
    order = [line for line in said if line.split()[0] in ("read", "sent", "wait", "compute")]
    assert order == [
        "read 0",
        "sent",
        "wait for event 1",
        "read 1",
        "sent",
        "compute 0",
        "wait for event 2",
        "read 2",
        "sent",
        "compute 1",
        "wait for event 3",
        "compute 2",
    ]
    # Every tensor of every batch: locked, copied on the stream beside, kept until it was used.
    tensors = sum(1 for batch in _batches([]) for _ in batch.tensors())
    assert [said.count(word) for word in ("lock", "copy", "keep")] == [tensors] * 3


def test_on_a_cpu_batches_pass_as_they_are() -> None:
    given = list(_batches([]))
    found = list(on_device((macro for macro in given), torch.device("cpu")))
    assert all(a is b for a, b in zip(given, found, strict=True))


def test_a_feed_that_is_left_closes_its_reader(accelerator: _Accelerator) -> None:
    closed = []

    def batches() -> Generator[MacroBatch, None, None]:
        try:
            yield from _batches([])
        finally:
            closed.append(True)

    feed = on_device(batches(), accelerator.kind)
    next(feed)
    feed.close()
    assert closed == [True]
