"""What a training reports while it runs, and when it is done."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from models import collectives
from models.config import TrainJob
from models.device import peak_memory_bytes


class MetricSink(Protocol):
    """Where the first rank reports to; the other ranks report nothing."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers at a step (a macro-batch)."""

    def log_text(self, name: str, text: str) -> None:
        """Something worth reading: settings at the start, a resume, a damaged checkpoint."""

    def progress(self, done: int, total: int, message: str) -> None:
        """Steps done of all steps, and a line that says how it goes."""


@dataclass(frozen=True)
class TrainSummary:
    """The result of a training.

    Attributes:
        steps: Macro-batches of the whole training.
        examples: Examples that this process's run trained on (over all ranks).
        seconds: Time of this run.
        loss: Mean loss of the last report.
        examples_per_second: Over this run.
        input_wait_share: Share of the time in which training waited for input.
        peak_memory_bytes: Of the first rank.
        world_size: Number of ranks.
        resumed_from: Step that a checkpoint was loaded from; None for a fresh start.
        output_dir: Where the weights are.
        recall: Recall of the validation for the weights that were kept; NaN without one.
        best_step: Step whose weights were kept, when the best epoch is the result.
    """

    steps: int
    examples: int
    seconds: float
    loss: float
    examples_per_second: float
    input_wait_share: float
    peak_memory_bytes: int
    world_size: int
    resumed_from: int | None
    output_dir: str
    recall: float = float("nan")
    best_step: int | None = None


class Meter:
    """Turns steps into reports.

    Args:
        job: The job.
        steps: Macro-batches of the whole training.
        first_step: Step that this run starts from.
        sink: Where reports go; None on ranks that report nothing.
        device: This rank's device.
    """

    def __init__(
        self,
        job: TrainJob,
        steps: int,
        first_step: int,
        sink: MetricSink | None,
        device: torch.device,
    ) -> None:
        self._job = job
        self._steps = steps
        self._first_step = first_step
        self._sink = sink
        self._device = device
        self._started = self._since = time.perf_counter()
        self._waited_before = 0.0
        self._examples = self._all_examples = 0
        self._loss: Tensor | None = None
        self._losses = 0
        self.loss = float("nan")
        """Mean loss of the last report."""
        self.recall = float("nan")
        """Latest recall of the validation."""

    def leave_out(self, seconds: float) -> None:
        """Takes time that was not spent on steps out of the throughput."""
        self._since += seconds

    def add(self, examples: int, loss: Tensor) -> None:
        """Counts a step.

        Args:
            examples: Its examples, over all ranks.
            loss: This rank's part of its mean loss.
        """
        self._examples += examples
        self._all_examples += examples
        # Kept on the device: reading a number from it would wait for the step to end.
        self._loss = loss if self._loss is None else self._loss + loss
        self._losses += 1

    def due(self, done: int) -> bool:
        """Whether to report after so many steps."""
        return done % self._job.training.log_every == 0 or done == self._steps

    def report(self, done: int, waited: float, **extra: float) -> None:
        """Reports since the last report; every rank calls it at the same step.

        Args:
            done: Steps done.
            waited: Seconds that this run has waited for input so far.
            extra: Further numbers.
        """
        if self._loss is not None:
            self.loss = float(collectives.total(self._loss)) / self._losses
        now = time.perf_counter()
        seconds = max(now - self._since, 1e-9)
        rate = self._examples / seconds
        if self._sink is not None:
            epoch = done / self._steps * self._job.training.epochs
            wait = (waited - self._waited_before) / seconds
            self._sink.log_metrics(
                done,
                {
                    "loss": self.loss,
                    "epoch": epoch,
                    "examples_per_second": rate,
                    "input_wait_share": wait,
                    "peak_memory_mib": peak_memory_bytes(self._device) / 2**20,
                    **extra,
                },
            )
            left = (now - self._started) / max(done - self._first_step, 1) * (self._steps - done)
            self._sink.progress(
                done,
                self._steps,
                f"loss {self.loss:.4f}, {self._recall_text()}{rate:,.0f} examples/s, "
                f"input wait {wait:.1%}, {left:,.0f} s left",
            )
        self._since, self._waited_before = now, waited
        self._examples, self._losses, self._loss = 0, 0, None

    def _recall_text(self) -> str:
        k = self._job.training.validation.k
        return "" if math.isnan(self.recall) else f"recall@{k} {self.recall:.4f}, "

    def summary(
        self,
        waited: float,
        resumed_from: int | None,
        recall: float = float("nan"),
        best_step: int | None = None,
    ) -> TrainSummary:
        """The summary at the end of this run; arguments as in `TrainSummary`."""
        seconds = max(time.perf_counter() - self._started, 1e-9)
        return TrainSummary(
            steps=self._steps,
            examples=self._all_examples,
            seconds=seconds,
            loss=self.loss,
            examples_per_second=self._all_examples / seconds,
            input_wait_share=waited / seconds,
            peak_memory_bytes=peak_memory_bytes(self._device),
            world_size=collectives.world_size(),
            resumed_from=resumed_from,
            output_dir=self._job.output_dir,
            recall=recall,
            best_step=best_step,
        )
