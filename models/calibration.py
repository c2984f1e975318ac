"""Measures what a unit of each kind of work costs on this machine, by training a little."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from models.expected_work import StepWork, step_work
from models.memory_estimate import place_tables
from models.planning import Costs, Job
from models.profiling import Profile, profile_training
from models.rehearsal import rehearsal_job

_TINY = 8  # examples of a micro-batch that costs next to nothing but its calls
_REPEATS = 5


@dataclass(frozen=True)
class Link:
    """What two processes of this machine reach.

    Attributes:
        bandwidth: Bytes a second that each sends while it gets as many.
        latency: Seconds of a message without content.
    """

    bandwidth: float
    latency: float


def measure_costs(job: Job, steps: int = 3) -> tuple[Costs, Profile]:
    """Trains some macro-batches of made-up examples on one rank.

    Args:
        job: What is to be planned; its tables must fit this machine's memory.
        steps: Macro-batches to time.

    Returns:
        The costs, and the profile that they come from.
    """
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        calls = _call_seconds(job, Path(folder) / "tiny")
        profile = profile_training(rehearsal_job(job, Path(folder) / "full", steps + 2), steps)
    load = step_work(
        job.model,
        job.tables,
        job.table_rows,
        job.training,
        1,
        place_tables(job.tables, job.table_rows, 1),
        job.data,
    )
    return costs_of(profile.seconds, load, calls), profile


def _call_seconds(job: Job, folder: Path) -> float:
    """Time of a micro-batch with next to no examples."""
    training = job.training.model_copy(update={"batch_size": _TINY})
    loss = training.loss.model_copy(update={"num_negatives": min(training.loss.num_negatives, 1)})
    tiny = replace(job, training=training.model_copy(update={"loss": loss}))
    found = profile_training(rehearsal_job(tiny, folder, _REPEATS + 2), _REPEATS)
    return sum(found.seconds.values()) / training.accumulate


def costs_of(seconds: Mapping[str, float], load: StepWork, micro_batch: float) -> Costs:
    """Costs of units of work, from the time of a step's parts.

    Args:
        seconds: Of a macro-batch by part, as `profile_training` names them.
        load: Work of the macro-batch.
        micro_batch: Seconds that a micro-batch costs however small it is.
    """
    total = sum(seconds.values())
    # The calls are in every part; each part gives up its share of them.
    left = max(0.1, 1.0 - micro_batch * load.pools / total)

    def cost(part: str, units: float) -> float:
        return seconds.get(part, 0.0) * left / max(units, 1.0)

    towers = seconds.get("towers forward", 0.0) + seconds.get("towers backward", 0.0)
    flop = 1.0 / matrix_flops()
    pooling = max(0.0, towers * left - flop * load.tower_flops)
    return Costs(
        example=cost("everything else", load.examples) + cost("waiting for input", load.examples),
        code=cost("encoding", load.codes),
        fetched_byte=cost("fetching rows", load.fetched_bytes),
        pooled_byte=pooling / max(load.pooled_bytes, 1.0),
        tower_flop=flop,
        score_flop=cost("scores and loss", load.score_flops),
        known=cost("choosing negatives", load.known),
        moved_byte=cost("updating", load.moved_bytes),
        micro_batch=micro_batch,
    )


def matrix_flops() -> float:
    """Operations a second of matrix products of the towers' size, with this process's threads."""
    x, w = torch.ones(2048, 192), torch.ones(192, 128)
    out = torch.empty(2048, 128)
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        for _ in range(20):
            torch.mm(x, w, out=out)
        best = min(best, time.perf_counter() - started)
    return 20 * 2.0 * 2048 * 192 * 128 / best


def measure_link(size: int = 32 << 20) -> Link:
    """What two ranks on this machine reach that exchange at the same time.

    Args:
        size: Bytes that each sends to the other.
    """
    with tempfile.TemporaryDirectory(prefix="link-") as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _talk, (folder, size), nprocs=2, start_method="spawn"
        )
        bandwidth, latency = (
            float(value) for value in (Path(folder) / "found").read_text().split()
        )
    return Link(bandwidth, latency)


def _talk(rank: int, folder: str, size: int) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    content, small = torch.zeros(2 * size, dtype=torch.uint8), torch.zeros(2)
    times: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(_REPEATS):
        for number, message in enumerate((content, small)):
            answer = torch.empty_like(message)
            dist.barrier()
            started = time.perf_counter()
            # All goes to the other rank.
            half = len(message)
            splits = [0, half] if rank == 0 else [half, 0]
            dist.all_to_all_single(answer, message, splits, splits)
            times[number].append(time.perf_counter() - started)
    if rank == 0:
        seconds, latency = (sorted(times[n])[_REPEATS // 2] for n in (0, 1))
        (Path(folder) / "found").write_text(f"{2 * size / seconds} {latency}")
    dist.destroy_process_group()
