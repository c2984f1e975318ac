"""Protects the exchange in short types: half the bytes, and the same training but for rounding."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.config import TrainJob
from models.trainer import train
from tests.models.ranks import on_ranks
from tests.models.sinks import Recorder
from tests.models.worlds import make_job, make_world

pytestmark = pytest.mark.integration
SHARDINGS = ("table_wise", "row_wise", "column_wise")
TYPES = {"fp16": {"float16", "bfloat16"}, "bf16": {"bfloat16"}}
"""Types that travel, by the setting."""
Way = tuple[str, str]
"""Sharding and communication."""


def train_and_count(jobs: dict[Way, TrainJob]) -> dict[Way, dict[str, int]]:
    """Bytes of rows and gradients that this rank sent to others, by type."""
    from models import row_exchange

    sent: dict[Way, dict[str, int]] = {}

    class Counting(row_exchange._Message):
        def __init__(self, shapes: Any, device: torch.device) -> None:
            super().__init__(shapes, device)
            for shape, dtype in (one for some in shapes for one in some):
                kind, size = str(dtype).removeprefix("torch."), prod(shape) * dtype.itemsize
                found[kind] = found.get(kind, 0) + size
            # What is counted is what travels.
            assert sum(row_exchange._sizes(shapes)) == len(self._bytes)

    row_exchange._Message = Counting  # type: ignore[misc]
    for way, job in jobs.items():
        found: dict[str, int] = {}
        train(job, Recorder())
        sent[way] = found
    return sent


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[Way, TrainJob], list[dict[Way, dict[str, int]]]]:
    """Trainings on two ranks, and what each rank sent."""
    folder = tmp_path_factory.mktemp("short")
    world = make_world(folder / "world", num_users=30, num_items=25)
    jobs = {
        (sharding, kind): make_job(
            world,
            folder / sharding / kind,
            sharding=sharding,
            communication=kind,
            accumulate=2,
            optimizer={"eps": 1e-2},
        )
        for sharding in SHARDINGS
        for kind in ("fp32", *TYPES)
    }
    return jobs, on_ranks(2, train_and_count, jobs)


def _item_table(job: TrainJob) -> torch.Tensor:
    return load_file(Path(job.output_dir) / "tables/item.safetensors")["weight"]


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("communication", TYPES)
def test_rows_and_gradients_travel_in_short_types(
    trained: tuple[dict[Way, TrainJob], list[dict[Way, dict[str, int]]]],
    sharding: str,
    communication: str,
) -> None:
    jobs, by_rank = trained
    full, short = (sharding, "fp32"), (sharding, communication)
    plain, found = ([sent[way] for sent in by_rank] for way in (full, short))
    assert set().union(*plain) == {"float32"}
    assert set().union(*found) == TYPES[communication]
    assert 2 * sum(sum(f.values()) for f in found) == sum(sum(f.values()) for f in plain)
    difference = (_item_table(jobs[full]) - _item_table(jobs[short])).abs().max()
    # Rounded to eight bits, and trained all the same.
    assert 0 < float(difference) < 0.02
    assert _item_table(jobs[short]).dtype == torch.float32
