"""Protects the exchange in short types: half the bytes, and the same training but for rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from models.config import TrainJob
from models.trainer import train
from tests.models.ranks import on_ranks
from tests.models.sinks import Recorder
from tests.models.worlds import make_job, make_world

pytestmark = pytest.mark.integration
EXCHANGES = {"all_to_all_single", "reduce_scatter", "reduce_scatter_tensor", "all_gather"}


SHARDINGS = ("table_wise", "row_wise", "column_wise")
TYPES = {"fp16": {"float16", "bfloat16"}, "bf16": {"bfloat16"}}
"""Types that travel, by the setting."""
Way = tuple[str, str]
"""Sharding and communication."""


class Counting:
    """`torch.distributed`, with the bytes of floating point numbers that are given to it."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(dist, name)
        if name.removesuffix("_into_tensor") not in EXCHANGES:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            given = named.get("input", arguments[1] if len(arguments) > 1 else None)
            for tensor in given if isinstance(given, list) else [given]:
                if tensor.is_floating_point():
                    kind = str(tensor.dtype).removeprefix("torch.")
                    size = tensor.numel() * tensor.element_size()
                    self.sent[kind] = self.sent.get(kind, 0) + size
            return found(*arguments, **named)

        return call


def train_and_count(jobs: dict[Way, TrainJob]) -> dict[Way, dict[str, int]]:
    """Bytes that TorchRec handed to its exchanges, by type."""
    from torchrec.distributed import comm_ops

    sent = {}
    for way, job in jobs.items():
        counting = comm_ops.dist = Counting()
        train(job, Recorder())
        sent[way] = counting.sent
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
