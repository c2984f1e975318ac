"""The traditional baseline: what one would write by hand in plain PyTorch.

A row for every user and every item, dense gradients, uniform negatives and an ordinary cross
entropy over materialised logits, in one process. It has the same towers, data, batches and
learning rates as the product, so what differs is what the product adds. Features of kind
`neighbours` are among that: its item tower leaves them out.
"""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import collectives
from models.batch import UserInputs
from models.config import EmbeddingTableSettings, ModelSettings, TowerSettings, TrainJob
from models.corpus import FULL_ITEM_TABLE, FULL_USER_TABLE, Corpus
from models.encoder import Encoder
from models.errors import CheckpointError, ModelError
from models.fence import Fence
from models.initial import initial_rows
from models.numeric_features import measure_features
from models.prior import prior_scores
from models.progress import Meter, MetricSink, TrainSummary
from models.reader import ExampleReader, MacroBatch
from models.row_selection import select_rows
from models.seeds import generator_for
from models.stopping import StopRequest
from models.two_tower import TwoTower
from models.validation import Validation, ValidationSchedule
from models.weights import TrainedModel, trained_model, write_weights

_CHECKPOINT = "latest.pt"
_BEST = "best.pt"
_log = logging.getLogger(__name__)


def with_full_tables(job: TrainJob, num_items: int) -> TrainJob:
    """The job with full tables in place of those of the user and item IDs.

    Args:
        job: The job; its other tables stay as they are.
        num_items: Items in the corpus.
    """
    user_table = job.user_id_table or _first_id_table(job.model.user)
    item_table = job.item_id_table or _first_id_table(job.model.item)
    tables, rows, hashes = dict(job.tables), dict(job.table_rows), dict(job.table_hashes)
    for old, new, count in (
        (user_table, FULL_USER_TABLE, job.num_users),
        (item_table, FULL_ITEM_TABLE, num_items),
    ):
        if old is not None:
            tables[new] = EmbeddingTableSettings(dim=job.tables[old].dim)
            rows[new], hashes[new] = count + 1, 1
    model = ModelSettings.model_validate(
        {
            **job.model.model_dump(),
            "user": _renamed(job.model.user, {user_table: FULL_USER_TABLE}, item_table),
            "item": _renamed(job.model.item, {item_table: FULL_ITEM_TABLE}, item_table),
        }
    )
    used = {f.table for tower in (model.user, model.item) for f in tower.coded}
    return job.model_copy(
        update={
            "model": model,
            "tables": {name: table for name, table in tables.items() if name in used},
            "table_rows": {name: count for name, count in rows.items() if name in used},
            "table_hashes": {name: count for name, count in hashes.items() if name in used},
        }
    )


def train_traditional(
    job: TrainJob, sink: MetricSink, device: torch.device, stop: StopRequest
) -> TrainSummary:
    """Trains the baseline and writes its weights to `job.output_dir`.

    Args:
        job: The job.
        sink: Where it reports to.
        device: The device.
        stop: Whether to stop after the current step.

    Raises:
        ExamplesError: A file of examples cannot be used.
        CheckpointError: The checkpoint belongs to another job.
        TrainingStopped: The process was told to stop; a checkpoint was written first.
    """
    return TraditionalTraining(job, sink, device).run(stop)


class TraditionalTraining:
    """One training of the baseline; like `DistributedTraining`, but in one process.

    Args:
        job: The job, with the product's tables.
        sink: Where it reports to.
        device: The device.

    Raises:
        ExamplesError: A file of examples cannot be used.
        ModelError: There are several ranks.
    """

    def __init__(self, job: TrainJob, sink: MetricSink, device: torch.device) -> None:
        if collectives.world_size() > 1:
            raise ModelError("the traditional baseline trains in one process: start it with 1 rank")
        corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
        job = with_full_tables(job, len(corpus))
        self._job = job
        self._sink = sink
        self._device = device
        self._num_items = len(corpus)
        self._fence = Fence(job.checkpoint_dir)
        self._ranks = self._fence.enter()
        selection = select_rows(job)
        self._reader = ExampleReader(job, len(corpus), selection=selection)
        self._numeric = measure_features(job)
        self._encoder = Encoder(job.model, corpus, job.table_hashes, device, self._numeric)
        seed = job.training.seed
        self._towers = TwoTower(job.model, job.tables, job.table_hashes, seed).to(device)
        self._tables = nn.ModuleDict(
            {
                name: nn.Embedding(
                    job.table_rows[name],
                    table.dim,
                    padding_idx=0,
                    _weight=initial_rows(name, table.dim, seed, 0, job.table_rows[name]),
                )
                for name, table in job.tables.items()
            }
        ).to(device)
        settings = job.training.optimizer
        self._optimizer = torch.optim.Adagrad(
            [
                {"params": [*self._towers.parameters()], "lr": settings.learning_rate},
                {
                    "params": [*self._tables.parameters()],
                    "lr": settings.learning_rate * settings.sparse_lr_scale,
                },
            ],
            eps=settings.eps,
        )
        self._validation = None
        if selection.users is not None:
            prior = prior_scores(corpus, job.model)
            self._validation = Validation(
                selection.users, job.model, prior, job.training.validation.k, device
            )
        self._schedule = ValidationSchedule(
            job.training, self._reader.steps_per_epoch, self._reader.steps, device
        )

    def user_vectors(self, users: UserInputs) -> Tensor:
        """Vectors of users, as the validation asks for them."""
        return self._towers.user_vectors(self._rows(), self._encoder.user_codes(users))

    def item_vectors(self, items: Tensor) -> Tensor:
        """Vectors of items by corpus index, as the validation asks for them."""
        return self._towers.item_vectors(self._rows(), self._encoder.item_codes(items))

    def run(self, stop: StopRequest) -> TrainSummary:
        """Trains from the last checkpoint, or from the start, to the end, and writes the weights.

        Args:
            stop: Whether to stop after the current step.

        Raises:
            TrainingStopped: The process was told to stop; a checkpoint was written first.
        """
        resumed_from = self._restore()
        if resumed_from is not None:
            self._sink.log_text("training", f"resumed from step {resumed_from}")
        summary = self.fit(stop, resumed_from)
        trained, towers, tables = self.model()
        write_weights(Path(self._job.output_dir), trained, towers.state_dict(), tables.items())
        return summary

    def fit(
        self, stop: StopRequest, resumed_from: int | None = None, steps: int | None = None
    ) -> TrainSummary:
        """Trains on what is left of the examples; weights and state stay in memory.

        Args:
            stop: Whether to stop after the current step.
            resumed_from: Steps that were taken before; None for none.
            steps: Steps to take at most; None for all that are left.

        Raises:
            TrainingStopped: The process was told to stop; a checkpoint was written first.
        """
        done = first = resumed_from or 0
        waited = self._reader.waited
        meter = Meter(self._job, self._reader.steps, done, self._sink, self._device)
        with closing(self._reader.read(done)) as reading:
            for macro in reading:
                if self._schedule.exhausted:
                    break
                meter.add(macro.examples, self._step(macro))
                done = macro.step + 1
                recall = self._validate(done, meter)
                if recall or meter.due(done):
                    meter.report(done, self._reader.waited - waited, **recall)
                if done < self._reader.steps:
                    if stop.asked or done % self._job.training.checkpoint_every == 0:
                        self._save(_CHECKPOINT, done)
                    stop.raise_if_asked(done, self._reader.steps)
                if done - first == steps:
                    break
        best = self._schedule.best_step
        recall_kept = meter.recall if best is None else self._schedule.best_recall
        if best not in (None, done):
            self._load(_BEST)
        return meter.summary(self._reader.waited - waited, resumed_from, recall_kept, best)

    def _validate(self, done: int, meter: Meter) -> dict[str, float]:
        """Recall when it is due, by its name; the best epoch so far is kept on disk."""
        if self._validation is None or not self._schedule.due(done, meter.due(done)):
            return {}
        before = self._schedule.spent
        meter.recall = self._schedule.measure(self._validation, self)
        meter.leave_out(self._schedule.spent - before)
        if self._schedule.judge(done, meter.recall):
            self._save(_BEST, done)
        return {f"validation_recall_at_{self._job.training.validation.k}": meter.recall}

    def model(self) -> tuple[TrainedModel, TwoTower, dict[str, Tensor]]:
        """The settings, the towers and the whole tables as they are now, sharing their memory."""
        tables = {name: self._weight(name).detach() for name in self._job.tables}
        return trained_model(self._job, self._numeric), self._towers, tables

    @property
    def steps_per_epoch(self) -> int:
        """Macro-batches of one epoch."""
        return self._reader.steps_per_epoch

    def _step(self, macro: MacroBatch) -> Tensor:
        self._optimizer.zero_grad()
        rows = self._rows()
        total = torch.zeros((), device=self._device)
        for number, micro in enumerate(macro.micro):
            batch = micro.local.to(self._device)
            generator = generator_for(self._job.training.seed, "uniform", macro.step, number)
            count = max(1, self._job.training.loss.num_negatives)
            drawn = torch.randint(self._num_items, (count,), generator=generator)
            items = torch.cat([batch.item, drawn.to(self._device)])
            users = self._towers.user_vectors(rows, self._encoder.user_codes(batch.users))
            vectors = self._towers.item_vectors(rows, self._encoder.item_codes(items))
            own, negatives = vectors[: len(batch)], vectors[len(batch) :]
            logits = torch.cat([(users * own).sum(1, keepdim=True), users @ negatives.T], dim=1)
            hit = batch.item[:, None] == items[None, len(batch) :]
            logits[:, 1:].masked_fill_(hit, -torch.inf)
            target = torch.zeros(len(batch), dtype=torch.int64, device=self._device)
            losses = F.cross_entropy(logits / self._job.model.temperature, target, reduction="none")
            loss = (losses * batch.weight).sum() / max(macro.weight, 1e-12)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        for weight in rows.values():
            # Pooling reads the weight itself, past `padding_idx`.
            if weight.grad is not None:
                weight.grad[0] = 0.0
        self._optimizer.step()
        return total

    def _rows(self) -> dict[str, Tensor]:
        return {name: self._weight(name) for name in self._job.tables}

    def _weight(self, name: str) -> Tensor:
        table = self._tables[name]
        assert isinstance(table, nn.Embedding)
        return table.weight

    def _state(self) -> dict[str, Any]:
        return {
            "towers": self._towers.state_dict(),
            "tables": self._tables.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "validation": self._schedule.state(),
        }

    def _save(self, name: str, step: int) -> None:
        path = Path(self._job.checkpoint_dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial{self._ranks}")
        torch.save({"step": step, "digest": self._job.digest, **self._state()}, partial)
        self._fence.check()
        partial.replace(path)

    def _restore(self) -> int | None:
        if not (Path(self._job.checkpoint_dir) / _CHECKPOINT).is_file():
            return None
        return self._load(_CHECKPOINT)

    def _load(self, name: str) -> int:
        path = Path(self._job.checkpoint_dir) / name
        state = torch.load(path, map_location=self._device, weights_only=True)
        if state["digest"] != self._job.digest:
            raise CheckpointError(
                f"{path} was made by another job (digest {state['digest']}, this job's is "
                f"{self._job.digest}): give this job a folder of its own"
            )
        self._towers.load_state_dict(state["towers"])
        self._tables.load_state_dict(state["tables"])
        self._optimizer.load_state_dict(state["optimizer"])
        for key, value in self._schedule.state().items():
            value.copy_(state["validation"][key])
        return int(state["step"])


def _first_id_table(tower: TowerSettings) -> str | None:
    return next((f.table for f in tower.features if f.kind == "id"), None)


def _renamed(
    tower: TowerSettings, ids: dict[str | None, str], item_table: str | None
) -> TowerSettings:
    """The tower with its ID features, and histories of items, on the full tables."""
    features = []
    for f in tower.features:
        if f.kind == "neighbours":
            continue  # counting pairs is no part of what one writes by hand
        table = f.table
        if f.kind == "id":
            table = ids.get(f.table, f.table)
        elif f.kind == "history" and f.table == item_table:
            table = FULL_ITEM_TABLE
        features.append(f.model_copy(update={"table": table}))
    return tower.model_copy(update={"features": tuple(features)})
