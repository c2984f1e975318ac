"""Step time and bytes per rank with a hot table and a hot ID, whole, in columns and in rows.

Every eighth macro-batch is a burst: its users have long histories, half of one hot item and half of
items that are all different. The item table lies whole on one rank, is cut into columns, or into
rows; the trainings live in the same processes and take turns.

    python -m benchmarks.skew --ranks 2
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import start_processes

from benchmarks.measure import busy_machine
from benchmarks.options import cache_folder, number
from benchmarks.silent import Silent
from benchmarks.synthetic_events import zipf_ranks
from models.config import TrainJob

CPU = torch.device("cpu")
BURST_EVERY = 8
HISTORY, CALM_HISTORY = 100, 5
DIM = 256  # of the hot table; a row of few bytes costs what finding it costs, however it is cut
TOWER_DIM = 64
WARM_UP = 16
SEED = 42
WAYS = {"before": "table_wise", "after": "column_wise", "rows": "row_wise"}


class _Rows(Silent):
    """Remembers what reports say of rows and codes."""

    def __init__(self) -> None:
        self.rows_per_code: list[float] = []

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keeps the one number."""
        self.rows_per_code.append(metrics["rows_per_code"])


def make_world(folder: Path, items: int, batch: int, steps: int) -> list[str]:
    """Files of one macro-batch each, such that every eighth that is trained on is a burst."""
    for name in ("train", "items"):
        (folder / name).mkdir(parents=True)
    rng = np.random.default_rng(1)
    count = np.ceil(1e6 * np.arange(1, items + 1) ** -1.05).astype(np.int64)
    codes = pa.array(np.arange(items, dtype=np.int32) + 2)
    ids = pa.ListArray.from_arrays(pa.array(np.arange(items + 1, dtype=np.int32)), codes)
    pq.write_table(
        pa.table({"train_count": count, "item_id_code": ids}), folder / "items/part-0.parquet"
    )
    # The order in which the reader takes the files of the first epoch.
    order = np.random.default_rng([SEED, 0]).permutation(steps)
    files = [str(folder / f"train/part-{number:05d}.parquet") for number in range(steps)]
    for step, file in enumerate(order):
        pq.write_table(_macro_batch(rng, items, batch, step % BURST_EVERY == 0), files[file])
    return files


def _macro_batch(rng: np.random.Generator, items: int, batch: int, burst: bool) -> pa.Table:
    length = HISTORY if burst else CALM_HISTORY
    size = batch * length
    history: npt.NDArray[np.int64] = (
        rng.integers(1, items, size) if burst else zipf_ranks(rng, size, items, 1.05) - 1
    )
    if burst:
        history.reshape(batch, length)[:, : length // 2] = 0
    offsets = pa.array(np.arange(0, size + 1, length, dtype=np.int32))
    users = rng.integers(0, batch, batch)
    user_codes = pa.array((users + 2).astype(np.int32))
    one_each = pa.array(np.arange(batch + 1, dtype=np.int32))
    return pa.table(
        {
            "user": users,
            "item": (zipf_ranks(rng, batch, items, 1.05) - 1).astype(np.int32),
            "history": pa.ListArray.from_arrays(offsets, pa.array(history.astype(np.int32))),
            "user_id_code": pa.ListArray.from_arrays(one_each, user_codes),
            "weight": np.ones(batch, np.float32),
        }
    )


def job_of(
    folder: Path, files: Sequence[str], items: int, batch: int, way: str, ranks: int
) -> TrainJob:
    """The job that keeps the item table in one way, or a part of it for each rank."""
    columns = {"column_width": DIM // ranks} if way == "column_wise" else {}
    history = {"name": "recent", "table": "item", "kind": "history", "max_length": HISTORY}
    return TrainJob.model_validate(
        {
            "kind": "two_tower",
            "train_files": list(files),
            "corpus_file": str(folder / "items/part-0.parquet"),
            "negatives_file": None,
            "table_rows": {"user": batch + 2, "item": items + 2},
            "table_hashes": {"user": 1, "item": 1},
            "num_users": batch,
            "tables": {
                "user": {"dim": TOWER_DIM, "sharding": "table_wise"},
                "item": {"dim": DIM, "sharding": way, **columns},
            },
            "model": {
                "user": {
                    "features": [{"name": "user_id_code", "table": "user"}, history],
                    "hidden": [],
                },
                "item": {
                    "features": [{"name": "item_id_code", "table": "item"}],
                    "hidden": [],
                },
                "dim": TOWER_DIM,
            },
            "training": {
                "validation": {"users": 0},
                "epochs": 1,
                "batch_size": batch,
                "threads": 1,
                "seed": SEED,
                "checkpoint_every": 1_000_000,
                "log_every": BURST_EVERY,
                "loss": {"negatives": None, "num_negatives": 0, "mask_known": False},
            },
            "checkpoint_dir": str(folder / way / "checkpoints"),
            "output_dir": str(folder / way / "weights"),
            "digest": way,
        }
    )


def train_on_a_rank(rank: int, ranks: int, folder: Path, jobs: dict[str, str], turn: int) -> None:
    """Trains all ways in turns; the first rank writes down what all of them saw."""
    from models.distributed_training import DistributedTraining
    from models.skew import diagnose, spread
    from models.stopping import StopRequest
    from models.trainer import training_environment

    warnings.filterwarnings("ignore")
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), ranks)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(minutes=5)
    )
    with training_environment(CPU):
        sinks = {name: _Rows() for name in jobs}
        trainings = {
            name: DistributedTraining(TrainJob.model_validate_json(text), sinks[name], CPU)
            for name, text in jobs.items()
        }
        steps = next(iter(trainings.values())).steps_per_epoch
        for first in range(0, steps, turn):
            for training in trainings.values():
                training.fit(StopRequest(), resumed_from=first or None, steps=turn)
        found: dict[str, dict[str, Any]] = {}
        for name, training in trainings.items():
            seen = training.skew.steps()
            assert seen is not None
            kept = dataclasses.replace(
                seen,
                seconds=seen.seconds[WARM_UP:],
                busy=seen.busy[WARM_UP:],
                wait=seen.wait[WARM_UP:],
                bytes=seen.bytes[WARM_UP:],
            )
            slowest, busiest = kept.seconds.max(1) * 1000, kept.busy.max(1) * 1000
            found[name] = {
                "sharding": WAYS[name],
                "p50_ms": float(np.percentile(slowest, 50)),
                "p99_ms": float(np.percentile(slowest, 99)),
                "p99_over_p50": kept.spread,
                "bytes_max_over_mean": kept.unevenness,
                "burst_ms": float(np.median(slowest[::BURST_EVERY])),
                # What a step takes at least where every rank has a core of its own.
                "busy_burst_ms": float(np.median(busiest[::BURST_EVERY])),
                "busy_calm_ms": float(np.median(busiest)),
                "busy_p99_over_p50": spread(kept.busy),
                "busy_max_over_mean": float(
                    (kept.busy[::BURST_EVERY].max(1) / kept.busy[::BURST_EVERY].mean(1)).mean()
                ),
                "wait_share": (kept.wait.sum(0) / kept.seconds.sum(0)).round(3).tolist(),
                "findings": [
                    {"cause": f.cause, "table": f.table, "rank": f.rank, "text": f.text}
                    for f in diagnose(kept)
                ],
                "hot_row": kept.hot["item"][0],
                "hot_row_share_of_codes": kept.hot["item"][1],
            }
            if rank == 0:
                found[name]["rows_per_code"] = float(np.mean(sinks[name].rows_per_code))
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(
    folder: Path, *, ranks: int, items: int, batch: int, turns: int, turn: int
) -> dict[str, Any]:
    """Trains all ways and returns what was seen.

    Args:
        folder: Empty folder for the data.
        ranks: Number of ranks.
        items: Rows of the hot table.
        batch: Examples of a macro-batch.
        turns: How often the ways take turns.
        turn: Macro-batches of a turn; a multiple of eight.
    """
    files = make_world(folder, items, batch, turns * turn)
    jobs = {
        name: job_of(folder, files, items, batch, way, ranks).model_dump_json()
        for name, way in WAYS.items()
    }
    start_processes(  # type: ignore[no-untyped-call]
        train_on_a_rank, (ranks, folder, jobs, turn), nprocs=ranks, start_method="spawn"
    )
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    before, after = found["before"], found["after"]
    return {
        "ranks": ranks,
        "items": items,
        "batch": batch,
        "steps": turns * turn - WARM_UP,
        **found,
        "p99_over_p50": [before["p99_over_p50"], after["p99_over_p50"]],
        "busy_p99_over_p50": [before["busy_p99_over_p50"], after["busy_p99_over_p50"]],
        "busy_burst_ms": [before["busy_burst_ms"], after["busy_burst_ms"]],
        "bytes_max_over_mean": [before["bytes_max_over_mean"], after["bytes_max_over_mean"]],
        # What is exchanged over what would be if the exchange did not know each row once.
        "deduplicated_over_all": after["rows_per_code"],
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 4, 8))
    parser.add_argument("--items", type=number, default=200_000, help="rows of the hot table")
    parser.add_argument("--batch", type=int, default=2048, help="examples of a macro-batch")
    parser.add_argument("--turns", type=int, default=6, help="how often the ways take turns")
    parser.add_argument("--turn", type=int, default=64, help="macro-batches of a turn")
    parser.add_argument("--cache", type=Path, help="empty folder for the data, which stays")
    options = parser.parse_args(argv)
    if options.turn % BURST_EVERY:
        parser.error(f"--turn: a multiple of {BURST_EVERY}")
    load = busy_machine()
    with cache_folder(options.cache) as folder:
        result = measure(
            Path(tempfile.mkdtemp(dir=folder)),
            ranks=options.ranks,
            items=options.items,
            batch=options.batch,
            turns=options.turns,
            turn=options.turn,
        )
    for name in WAYS:
        one = result[name]
        print(
            f"{name}, {one['sharding']}: p50 {one['p50_ms']:.1f} ms, p99 {one['p99_ms']:.1f} ms, "
            f"busiest rank serves {one['bytes_max_over_mean']:.2f} times the mean; processor time "
            f"of the busiest rank {one['busy_calm_ms']:.1f} ms, in bursts "
            f"{one['busy_burst_ms']:.1f} ms, {one['busy_max_over_mean']:.2f} times the mean"
        )
        for finding in one["findings"]:
            print(f"  {finding['text']}")
    print(json.dumps({"benchmark": "skew", "busy": round(load, 2), **result}))


if __name__ == "__main__":
    main()
