"""Looks, before a training takes memory, whether every rank has what it will need."""

from __future__ import annotations

from dataclasses import fields

import torch
import torch.distributed as dist

from models import collectives
from models.config import TrainJob
from models.corpus import Corpus
from models.device import rank_memory_bytes
from models.errors import MemoryShortageError
from models.memory_estimate import (
    Placement,
    RankMemory,
    estimate_rank_memory,
    memory_table,
)
from models.progress import MetricSink
from models.storage import mean_elements


class MemoryCheck:
    """Measures what every rank has, when it is made, and compares it with what a job needs.

    Making it is a collective.

    Args:
        job: The job.
        device: This rank's device.
    """

    def __init__(self, job: TrainJob, device: torch.device) -> None:
        self._job = job
        self._device = device
        limit, held = rank_memory_bytes(device)
        mine = (int(job.training.rank_memory or limit), held)
        self._every = [mine] * collectives.world_size()
        if len(self._every) > 1:
            dist.all_gather_object(self._every, mine)
        free = max(2, min(limit - held for limit, held in self._every))
        self.for_tables = free // 2 if device.type == "cpu" else free
        """Bytes that tables may fill on a rank; on a host, a checkpoint takes as many again."""

    def require(
        self, placement: Placement, corpus: Corpus, file_rows: int, sink: MetricSink | None
    ) -> None:
        """Reports what each rank needs and has; a collective.

        Args:
            placement: Where the parts of the tables will be.
            corpus: The items.
            file_rows: Rows of the largest file of examples.
            sink: Where the table goes; None on ranks that report nothing.

        Raises:
            MemoryShortageError: Some rank has less than it needs. On every rank alike.
        """
        job = self._job
        known = collectives.first_decides(lambda: _elements(job, corpus))
        ranks = estimate_rank_memory(
            job.model,
            job.tables,
            job.table_rows,
            job.training,
            len(self._every),
            items=len(corpus),
            hashes=job.table_hashes,
            elements=known,
            file_rows=file_rows,
            placement=placement,
            on_host=self._device.type == "cpu",
            process=[held for _, held in self._every],
        )
        limits = [limit for limit, _ in self._every]
        table = memory_table(ranks, limits)
        if sink is not None:
            sink.log_text("memory_needed", f"memory needed at most, in MiB\n{table}")
        short = [(r, limit) for r, limit in zip(ranks, limits, strict=True) if r.total > limit]
        if short:
            raise MemoryShortageError(_advice(*short[0], table, job))


def _elements(job: TrainJob, corpus: Corpus) -> dict[str, float]:
    """Mean elements of the lists and histories of the first file, and of the corpus."""
    names = {f.name: f for f in job.model.user.coded if f.kind in ("list", "history")}
    columns = {("history" if f.kind == "history" else name) for name, f in names.items()}
    found = mean_elements(job.train_files[0], sorted(columns)) if job.train_files else {}
    known = {}
    for name, f in names.items():
        column = "history" if f.kind == "history" else name
        if column in found:
            known[name] = found[column] / (1 if f.kind == "history" else job.table_hashes[f.table])
    for f in job.model.item.coded:
        if f.kind in ("list", "neighbours") and len(corpus):
            codes = corpus.features[f.name].values.numel()
            each = 1 if f.kind == "neighbours" else job.table_hashes[f.table]
            known[f.name] = codes / len(corpus) / each
    return known


def _advice(rank: RankMemory, limit: int, table: str, job: TrainJob) -> str:
    # A copy is as large as what is copied.
    others = {"rank", "copies"}
    parts = {f.name: getattr(rank, f.name) for f in fields(rank) if f.name not in others}
    largest = max(parts, key=parts.__getitem__)
    biggest = max(job.tables, key=lambda name: job.table_rows[name] * job.tables[name].dim)
    remedies = {
        "tables": f"spread table '{biggest}' (`sharding: row_wise`), or store it as `dtype: fp16`",
        "optimizer": "take training.optimizer.sparse: rowwise_adagrad, or more ranks",
        "towers": "make the towers' hidden layers narrower",
        "activations": "lower training.batch_size or training.accumulate, or take more ranks",
        "input": "lower training.read_ahead, or write smaller files of examples",
        "process": "start fewer ranks on a machine",
    }
    return (
        f"rank {rank.rank} needs up to {rank.total / 2**20:,.0f} MiB and may use "
        f"{limit / 2**20:,.0f} MiB; most of it is {largest}: {remedies[largest]}; or set "
        f"training.rank_memory, where the estimate is too careful\n{table}"
    )
