"""Worlds of several ranks for tests, from one process that has imported everything.

TorchRec takes seconds to import. A server imports it once, and every rank is forked from it: a
world of four starts in a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import start_processes

TIMEOUT = 100.0
_PRELOADED = ["models.distributed_training", "tests.models.ranks"]


def on_ranks(
    ranks: int, work: Callable[..., Any], *arguments: Any, ranks_a_node: int | None = None
) -> list[Any]:
    """Runs a function on every rank of a new gloo world and returns what each returned.

    Args:
        ranks: Number of ranks.
        work: A function of a module that a new process can import.
        arguments: What it is given.
        ranks_a_node: How many of the ranks count as one node; by default all.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        context = start_processes(
            _rank,
            (ranks, ranks_a_node or ranks, folder, work, arguments),
            nprocs=ranks,
            join=False,
            daemon=True,
            start_method="forkserver",
        )
        end = time.monotonic() + TIMEOUT
        try:
            while not context.join(timeout=1.0):
                assert time.monotonic() < end, f"{ranks} ranks: not in time"
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
        return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(ranks)]


def _rank(
    rank: int,
    ranks: int,
    ranks_a_node: int,
    folder: Path,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ |= {
        "LOCAL_RANK": str(rank % ranks_a_node),
        "LOCAL_WORLD_SIZE": str(ranks_a_node),
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
    }
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    store = FileStore(str(folder / "store"), ranks)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=ranks,
        # A rank that waits for one that failed ends before the test's patience does.
        timeout=timedelta(seconds=TIMEOUT / 2),
    )
    try:
        result = work(*arguments)
        (folder / str(rank)).write_bytes(pickle.dumps(result))
        dist.barrier()
    finally:
        dist.destroy_process_group()
