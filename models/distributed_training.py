"""The distributed training of the two-tower model on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from models import collectives
from models.accumulation import MacroStep
from models.checkpoint import Checkpoints
from models.config import TrainJob
from models.corpus import Corpus
from models.embedding_tables import EmbeddingTables
from models.encoder import Encoder
from models.negatives import AliasSampler
from models.progress import Meter, MetricSink, TrainSummary
from models.reader import ExampleReader
from models.stopping import StopRequest
from models.two_tower import TwoTower
from models.weights import trained_model, write_weights


class DistributedTraining:
    """One run of a job on one rank; every rank makes its own.

    Args:
        job: The job.
        sink: Where the first rank reports to.
        device: This rank's device.
    """

    def __init__(self, job: TrainJob, sink: MetricSink, device: torch.device) -> None:
        settings = job.training
        self._job = job
        self._device = device
        self._first = collectives.rank() == 0
        self._sink = sink
        corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
        self._reader = ExampleReader(job, len(corpus), collectives.rank(), collectives.world_size())
        self._towers = TwoTower(job.model, job.tables, job.table_hashes, settings.seed).to(device)
        self._tables = EmbeddingTables(
            job.tables, job.table_rows, settings.optimizer, settings.seed, device
        )
        self._optimizer = torch.optim.Adagrad(
            self._towers.parameters(),
            lr=settings.optimizer.learning_rate,
            eps=settings.optimizer.eps,
        )
        sampler = None
        if job.negatives_file is not None:
            sampler = AliasSampler.from_parquet(job.negatives_file, len(corpus))
        self._step = MacroStep(
            job.model,
            settings.loss,
            self._towers,
            self._tables,
            self._optimizer,
            Encoder(job.model, corpus, job.table_hashes, device),
            corpus,
            sampler,
            settings.seed,
            device,
        )
        self._checkpoints = Checkpoints(job.checkpoint_dir, job.digest, settings.keep_checkpoints)

    def run(self, stop: StopRequest) -> TrainSummary:
        """Trains from the last checkpoint, or from the start, to the end, and writes the weights.

        Args:
            stop: Whether to stop after the current step.

        Raises:
            TrainingStopped: The process was told to stop; a checkpoint was written first.
        """
        resumed_from = self._checkpoints.latest()
        if resumed_from is not None:
            self._restore(resumed_from)
        self._announce(resumed_from)
        done = resumed_from or 0
        meter = Meter(
            self._job, self._reader.steps, done, self._sink if self._first else None, self._device
        )
        rows = codes = 0
        for macro in self._reader.read(done):
            outcome = self._step.run(macro)
            done = macro.step + 1
            rows, codes = rows + outcome.rows, codes + outcome.codes
            meter.add(macro.examples, outcome.loss)
            if meter.due(done):
                meter.report(done, self._reader.waited, rows_per_code=rows / max(codes, 1))
                rows = codes = 0
            self._checkpoint(done, stop)
        self._checkpoints.finish()
        summary = meter.summary(self._reader.waited, resumed_from)
        self._export()
        return summary

    def _checkpoint(self, done: int, stop: StopRequest) -> None:
        # One rank may hear of the stop before another; all leave after the same step.
        (asked,) = collectives.maximum([int(stop.asked)], self._device)
        if done == self._reader.steps:
            return
        stop.asked = bool(asked)
        if stop.asked or done % self._job.training.checkpoint_every == 0:
            self._checkpoints.save(done, self._state(), wait=stop.asked)
        stop.raise_if_asked(done, self._reader.steps)

    def _state(self) -> dict[str, Any]:
        """Everything that a resume needs, by flat names; all but `rng` shares its memory."""
        state = {f"tables.{k}": v for k, v in self._tables.checkpoint_state().items()}
        state |= {f"towers.{k}": v for k, v in self._towers.state_dict().items()}
        for number, values in self._optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{number}.{k}": v for k, v in values.items()}
        return {**state, "rng": torch.get_rng_state()}

    def _restore(self, step: int) -> None:
        state = self._state()
        self._checkpoints.load(step, state)
        torch.set_rng_state(state["rng"])

    def _announce(self, resumed_from: int | None) -> None:
        if not self._first:
            return
        optimizer = self._job.training.optimizer
        lines = [
            f"device {self._device}, {collectives.world_size()} ranks, "
            f"{torch.get_num_threads()} threads each",
            f"{self._reader.examples:,} examples, {self._reader.steps_per_epoch:,} steps an epoch",
            f"learning rate: towers {optimizer.learning_rate:g} (Adagrad), tables "
            f"{optimizer.learning_rate * optimizer.sparse_lr_scale:g} (row-wise Adagrad)",
            *(f"table {name}: {kind}" for name, kind in sorted(self._tables.sharding.items())),
        ]
        if resumed_from is not None:
            lines.append(f"resumed from step {resumed_from}")
        self._sink.log_text("training", "\n".join(lines))

    def _export(self) -> None:
        tables = self._tables.full_tables()
        if self._first:
            write_weights(
                Path(self._job.output_dir),
                trained_model(self._job),
                self._towers.state_dict(),
                tables,
            )
        else:
            for _ in tables:
                pass
        dist.barrier()
