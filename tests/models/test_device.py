"""Protects the rule that one file alone knows what the machine computes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from models.device import communication_backend, use_threads

MODELS = Path(__file__).parents[2] / "models"


def test_no_other_file_names_a_vendor() -> None:
    vendor = re.compile(r"\b(cuda|nccl|rocm|xpu|mps|hpu)\b", re.IGNORECASE)
    found = {
        f"{path.name}:{number}"
        for path in MODELS.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if vendor.search(line)
    }
    assert found == set()


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
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
