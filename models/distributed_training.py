"""The distributed training of the two-tower model on one rank."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from models import collectives
from models.accumulation import MacroStep, StepOutcome
from models.checkpoint import Checkpoints
from models.config import TrainJob, WarmStart
from models.corpus import Corpus
from models.current_vectors import TableVectors
from models.device_feed import on_device
from models.embedding_tables import EmbeddingTables
from models.encoder import Encoder
from models.loss import loss_of
from models.memory_check import MemoryCheck
from models.memory_use import MemoryUse, NewTensors, bytes_of
from models.negative_pool import NegativePool
from models.negatives import AliasSampler
from models.numeric_features import measure_features
from models.optimization import Optimization
from models.optimizer_state import STATE_FOLDER, write_state
from models.precision import LossScale, layer_type, needs_scale
from models.prior import prior_scores
from models.progress import Meter, MetricSink, TrainSummary
from models.reader import ExampleReader, MacroBatch
from models.row_selection import select_rows
from models.skew import SkewWatch, diagnose
from models.skew import report as skew_report
from models.step_clock import StepClock
from models.step_trace import TRACES, StepTrace
from models.stopping import StopRequest
from models.two_tower import TwoTower
from models.validation import Validation, ValidationSchedule
from models.warm_start import EarlierModel
from models.weights import TrainedModel, trained_model, write_weights


class _Counts:
    """What steps saw since the last report."""

    def __init__(self) -> None:
        self._outcomes: list[StepOutcome] = []
        self._examples = 0

    def add(self, outcome: StepOutcome, examples: int) -> None:
        """Counts a step of so many examples over all ranks."""
        self._outcomes.append(outcome)
        self._examples += examples

    def take(self) -> dict[str, float]:
        """The numbers of a report, and starts anew; every rank calls it at the same step."""
        outcomes, examples = self._outcomes, max(self._examples, 1)
        self._outcomes, self._examples = [], 0
        repeats = collectives.total(torch.stack([o.repeats for o in outcomes]).sum())
        known = collectives.total(torch.stack([o.known for o in outcomes]).sum())
        codes = sum(o.codes for o in outcomes)
        report = {
            "rows_per_code": sum(o.rows for o in outcomes) / max(codes, 1),
            "columns_per_example": sum(o.columns for o in outcomes) / examples,
            "accidental_hits": float(repeats) / examples,
            "known_positives": float(known) / examples,
        }
        norms = [o.norm for o in outcomes if o.norm is not None]
        if norms:
            report["gradient_norm"] = float(torch.stack(norms).mean())
        return report


class _SkewReports:
    """Tells the first rank's sink why steps, or ranks, differ."""

    def __init__(self, watch: SkewWatch, sink: MetricSink | None) -> None:
        self._watch = watch
        self._sink = sink
        self._told: set[tuple[str, int | None, str | None]] = set()

    def add(self, started: float, busy: float, outcome: StepOutcome) -> None:
        """Counts a step of this rank that started at these times of clock and processor."""
        if outcome.load is not None:
            seconds = time.perf_counter() - started
            self._watch.add(seconds, time.thread_time() - busy, outcome.load, outcome.hot)

    def take(self, last: bool) -> dict[str, float]:
        """The numbers of a report; what is new is told at once, and all of it at the end."""
        steps = self._watch.steps()
        if steps is None:
            return {}
        found = {(f.cause, f.rank, f.table) for f in diagnose(steps)}
        if self._sink is not None and (last or found - self._told):
            self._sink.log_text("skew", skew_report(steps))
        self._told |= found
        return {
            "step_p99_over_p50": steps.spread,
            "rank_bytes_max_over_mean": steps.unevenness,
            "rank_wait_share": float((steps.wait.sum(0) / steps.seconds.sum(0)).max()),
        }


class DistributedTraining:
    """One run of a job on one rank; every rank makes its own.

    Args:
        job: The job.
        sink: Where the first rank reports to.
        device: This rank's device.

    Raises:
        MemoryShortageError: A rank would need more memory than it has; nothing was taken yet.
    """

    def __init__(self, job: TrainJob, sink: MetricSink, device: torch.device) -> None:
        settings = job.training
        self._job = job
        self._device = device
        self._first = collectives.rank() == 0
        self._sink = sink
        self._memory: dict[str, float] | None = None
        check = MemoryCheck(job, device)
        corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
        self._selection = collectives.first_decides(lambda: select_rows(job))
        self._reader = ExampleReader(
            job, len(corpus), collectives.rank(), collectives.world_size(), self._selection
        )
        layers = layer_type(settings.precision, device)
        self._layers = "fp32" if layers is None else str(layers).removeprefix("torch.")
        if layers is not None and device.type != "cpu":
            # The products of the loss, too, at the speed of the device's matrix units.
            torch.set_float32_matmul_precision("high")
        self._towers = TwoTower(
            job.model,
            job.tables,
            job.table_hashes,
            settings.seed,
            recompute=settings.checkpoint_activations,
            layers=layers,
        ).to(device)
        self._tables = EmbeddingTables(
            job.tables,
            job.table_rows,
            settings.optimizer,
            settings.seed,
            device,
            settings.table_ranks,
            settings.communication,
            check.for_tables,
            lambda parts: check.require(
                parts, corpus, self._reader.largest_file, sink if self._first else None
            ),
        )
        self.skew = SkewWatch(self._tables.exchanged, self._tables.sharding)
        """The latest steps; empty where nothing is exchanged."""
        self._scale = LossScale(needs_scale(layers), device)
        self._optimization = Optimization(
            settings.optimizer, self._towers, self._tables, self._scale
        )
        sampler = None
        if job.negatives_file is not None:
            sampler = AliasSampler.from_parquet(job.negatives_file, len(corpus))
        self._negatives = NegativePool(
            settings.loss, corpus, sampler, job.model.dim, settings.seed, device
        )
        self._numeric = collectives.first_decides(lambda: measure_features(job))
        encoder = Encoder(job.model, corpus, job.table_hashes, device, self._numeric)
        self._step = MacroStep(
            job.model,
            loss_of(job.model, settings.loss),
            self._towers,
            self._tables,
            self._optimization,
            encoder,
            self._negatives,
            device,
        )
        self._vectors = TableVectors(job.model, encoder, self._towers, self._tables)
        self._validation = None
        if self._selection.users is not None:
            prior = prior_scores(corpus, job.model)
            self._validation = Validation(
                self._selection.users, job.model, prior, settings.validation.k, device
            )
        self._schedule = ValidationSchedule(
            settings, self._reader.steps_per_epoch, self._reader.steps, device
        )
        self._checkpoints = Checkpoints(job.checkpoint_dir, job.digest, settings.keep_checkpoints)

    def run(self, stop: StopRequest) -> TrainSummary:
        """Trains from the last checkpoint, or from the start, to the end, and writes the weights.

        Args:
            stop: Whether to stop after the current step.

        Raises:
            TrainingStopped: The process was told to stop; a checkpoint was written first.
        """
        resumed_from = self.resume()
        if resumed_from is None and self._job.warm_start is not None:
            self.start_from(self._job.warm_start)
        self._announce(resumed_from)
        summary = self.fit(stop, resumed_from)
        self._export()
        return summary

    def resume(self) -> int | None:
        """Loads the newest checkpoint, whatever number of ranks wrote it; a collective.

        Returns:
            Steps that were taken before it; None when there is none.

        Raises:
            CheckpointError: It is another job's, or cannot be spread over these ranks.
        """
        step = self._checkpoints.latest()
        if step is not None:
            self._restore(step)
        return step

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
        done = resumed_from or 0
        meter = Meter(
            self._job, self._reader.steps, done, self._sink if self._first else None, self._device
        )
        counts = _Counts()
        skew = _SkewReports(self.skew, self._sink if self._first else None)
        waited = self._reader.waited
        first = done
        traced = self._job.training.trace_steps if self._first else 0
        trace = StepTrace(traced, Path(self._job.checkpoint_dir).parent / TRACES)
        reading = on_device(self._reader.read(done), self._device)
        with closing(reading), closing(trace):
            for macro in reading:
                if self._schedule.exhausted:
                    break
                has_past = macro.epoch > 0 or self._job.warm_start is not None
                if has_past and macro.step % self._reader.steps_per_epoch == 0:
                    self._optimization.decay_accumulators()
                trace.before(macro.step)
                # The first step makes state that the others find; a run of one step has no other.
                settled = macro.step == min(first + 1, self._reader.steps - 1)
                measured = settled and self._memory is None
                started = time.perf_counter(), time.thread_time()
                outcome = self._measured(macro) if measured else self._step.run(macro)
                skew.add(*started, outcome)
                trace.after()
                done = macro.step + 1
                counts.add(outcome, macro.examples)
                meter.add(macro.examples, outcome.loss)
                recall, improved = self._validate(done, meter)
                if recall or meter.due(done):
                    report = {
                        **counts.take(),
                        **skew.take(last=done == self._reader.steps),
                        **recall,
                        **(self._memory or {}),
                    }
                    if self._scale.active:
                        report["loss_scale"] = self._scale.factor
                        report["skipped_steps"] = self._scale.skipped
                    # Said once: it does not change.
                    self._memory = self._memory and {}
                    meter.report(done, self._reader.waited - waited, **report)
                self._checkpoint(done, stop, improved)
                if done - first == steps:
                    break
        self._checkpoints.finish()
        recall_kept = self._take_best(done, meter.recall)
        return meter.summary(
            self._reader.waited - waited, resumed_from, recall_kept, self._schedule.best_step
        )

    def _validate(self, done: int, meter: Meter) -> tuple[dict[str, float], bool]:
        """Recall when it is due, by its name, and whether this epoch is the best so far."""
        if self._validation is None or not self._schedule.due(done, meter.due(done)):
            return {}, False
        before = self._schedule.spent
        meter.recall = self._schedule.measure(self._validation, self._vectors)
        meter.leave_out(self._schedule.spent - before)
        name = f"validation_recall_at_{self._job.training.validation.k}"
        improved = self._schedule.judge(done, meter.recall)
        report = {name: meter.recall, "validation_seconds": self._schedule.spent}
        return report, improved

    def _take_best(self, done: int, latest: float) -> float:
        """Goes back to the best epoch where that is the result; returns its recall."""
        best = self._schedule.best_step
        if best is None:
            return latest
        recall = self._schedule.best_recall
        if best != done:
            self._restore(best)
            if self._first:
                self._sink.log_text(
                    "best_epoch",
                    f"recall@{self._job.training.validation.k} was best after step {best} of "
                    f"{done}, {recall:.4f}: its weights are the result",
                )
        return recall

    def model(self) -> tuple[TrainedModel, TwoTower, dict[str, Tensor]]:
        """The settings, the towers and the whole tables as they are now; a collective."""
        return (
            trained_model(self._job, self._numeric),
            self._towers,
            dict(self._tables.full_tables()),
        )

    @property
    def steps_per_epoch(self) -> int:
        """Macro-batches of one epoch."""
        return self._reader.steps_per_epoch

    @property
    def clock(self) -> StepClock:
        """Time of the parts of this rank's steps."""
        return self._step.clock

    def _measured(self, macro: MacroBatch) -> StepOutcome:
        """Takes a step and reports where the memory goes."""
        if self._device.type == "cpu":
            with NewTensors() as new:
                outcome = self._step.run(macro)
            made = new.peak
        else:
            before = torch.accelerator.memory_allocated(self._device)
            torch.accelerator.reset_peak_memory_stats(self._device)
            outcome = self._step.run(macro)
            made = torch.accelerator.max_memory_allocated(self._device) - before
        use = MemoryUse(
            tables=bytes_of(self._tables.local_weights()),
            optimizer=bytes_of(
                [*self._tables.local_state(), *self._optimization.dense_state().values()]
            ),
            towers=bytes_of(self._towers.parameters()),
            input=bytes_of(macro.tensors()) * max(1, self._job.training.read_ahead),
            activations=made,
        )
        if self._first:
            self._sink.log_text("memory", use.text())
        self._memory = use.metrics()
        return outcome

    def _checkpoint(self, done: int, stop: StopRequest, improved: bool) -> None:
        # One rank may hear of the stop before another; all leave after the same step.
        (asked,) = collectives.maximum([int(stop.asked)], self._device)
        if done == self._reader.steps:
            return
        stop.asked = bool(asked)
        if improved:
            self._checkpoints.pinned = done
        if stop.asked or improved or done % self._job.training.checkpoint_every == 0:
            self._checkpoints.save(done, self._state(), wait=stop.asked)
        stop.raise_if_asked(done, self._reader.steps)

    def _state(self) -> dict[str, Any]:
        """Everything that a resume needs, by flat names; all but `rng` shares its memory."""
        state = {f"tables.{k}": v for k, v in self._tables.checkpoint_state().items()}
        state |= {f"towers.{k}": v for k, v in self._towers.state_dict().items()}
        state |= {f"optimizer.{k}": v for k, v in self._optimization.dense_state().items()}
        state |= {f"bank.{k}": v for k, v in self._negatives.state().items()}
        state |= {f"validation.{k}": v for k, v in self._schedule.state().items()}
        state |= {f"precision.{k}": v for k, v in self._scale.state().items()}
        return {**state, "rng": torch.get_rng_state()}

    def _restore(self, step: int) -> None:
        self._optimization.materialise()
        state = self._state()
        self._checkpoints.load(step, state)
        torch.set_rng_state(state["rng"])
        self._checkpoints.pinned = self._schedule.best_step

    @torch.no_grad()
    def start_from(self, start: WarmStart) -> None:
        """Takes over weights and optimizer state of an earlier model."""
        # Each rank reads the files; one that cannot must not leave the others waiting.
        earlier = collectives.all_or_none(lambda: EarlierModel(start, self._job))
        earlier.fill_tables(self._tables.parts())
        own = self._towers.state_dict()
        for name, weight in earlier.tower_weights(own).items():
            own[name].copy_(weight)
        self._optimization.materialise()
        state = self._optimization.state_by_parameter()
        for name, value in earlier.tower_state(state).items():
            state[name].copy_(value)

    def _announce(self, resumed_from: int | None) -> None:
        if not self._first:
            return
        optimizer = self._job.training.optimizer
        lines = [
            f"device {self._device}, {collectives.world_size()} ranks, "
            f"{torch.get_num_threads()} threads each, layers in {self._layers}",
            f"{self._reader.examples:,} examples, {self._reader.steps_per_epoch:,} steps an epoch",
            self._validation_line(),
            f"learning rate: towers {optimizer.learning_rate:g} ({optimizer.dense}), tables "
            f"{optimizer.learning_rate * optimizer.sparse_lr_scale:g} ({optimizer.sparse})",
            *(f"table {name}: {kind}" for name, kind in sorted(self._tables.sharding.items())),
        ]
        lines += [
            f"numeric feature {side}.{name}: {statistics.text()}"
            for side, features in self._numeric.items()
            for name, statistics in features.items()
        ]
        if self._job.warm_start is not None:
            lines.append(f"continues from {self._job.warm_start.bundle}")
        if resumed_from is not None:
            lines.append(f"resumed from step {resumed_from}")
        self._sink.log_text("training", "\n".join(lines))

    def _validation_line(self) -> str:
        if self._validation is None:
            return "no validation"
        if self._job.validation_file is not None:
            return f"validation on {len(self._validation):,} users of {self._job.validation_file}"
        return (
            f"validation on the last event of {self._selection.size:,} users; these examples are "
            "held out of the training"
        )

    def _export(self) -> None:
        self._checkpoints.require_place()
        state, tables = self._tables.full_state(), self._tables.full_tables()
        if self._first:
            write_state(
                Path(self._job.output_dir) / STATE_FOLDER,
                self._job.training.optimizer,
                self._optimization.state_by_parameter(),
                state,
            )
            write_weights(
                Path(self._job.output_dir),
                trained_model(self._job, self._numeric),
                self._towers.state_dict(),
                tables,
            )
        else:
            for _ in (*state, *tables):
                pass
        dist.barrier()
