"""Recall on held-out events while a training runs, and when to stop because of it."""

from __future__ import annotations

import math
import time
from typing import Protocol

import pyarrow as pa
import torch
from torch import Tensor

from models import collectives
from models.batch import UserInputs
from models.config import ModelSettings, TrainingSettings
from models.errors import ExamplesError
from models.jagged import Jagged

_ITEM_BLOCK = 8192
_USER_BLOCK = 1024
_TIE = 1e-6  # two products of the same vectors may differ by a rounding


class CurrentVectors(Protocol):
    """The model as it is now. Collectives: all ranks ask equally often."""

    def user_vectors(self, users: UserInputs) -> Tensor:
        """Vectors of this rank's users, float32 `[U, D]`."""

    def item_vectors(self, items: Tensor) -> Tensor:
        """Vectors of this rank's items by corpus index, float32 `[N, D]`."""


class Validation:
    """Measures recall over the full corpus, as the evaluation does, spread over the ranks.

    Nothing is drawn and no weight changes, so a training with validation takes the same steps
    whenever, and however often, it is measured.

    Args:
        users: Columns of the user tower, `seen` and `targets`; the same on every rank.
        model: The model.
        prior: What is added to the score of each item of the corpus, `[I]`.
        k: Cut-off.
        device: This rank's device.

    Raises:
        ExamplesError: The users do not fit the model or the corpus.
    """

    def __init__(
        self, users: pa.Table, model: ModelSettings, prior: Tensor, k: int, device: torch.device
    ) -> None:
        num_items = len(prior)
        try:
            self._users = UserInputs.from_arrow(users, model)
            targets = Jagged.from_arrow(users.column("targets"))
        except ValueError as error:
            raise ExamplesError(str(error), "users to validate on") from error
        seen = self._users.seen
        assert seen is not None  # a column of the table
        for name, rows in (("targets", targets), ("seen", seen)):
            if rows.values.numel() and not (
                0 <= int(rows.values.min()) <= int(rows.values.max()) < num_items
            ):
                raise ExamplesError(
                    f"column '{name}' has a value outside [0, {num_items})", "users to validate on"
                )
        self._k = k
        self._prior = prior.to(device)
        self._device = device
        self._target = targets.values.to(device)
        self._user_of = targets.row_ids().to(device)
        self._counts = targets.lengths.to(device)
        self._seen_items, self._seen_rows = seen.values.to(device), seen.row_ids().to(device)

    def __len__(self) -> int:
        return len(self._users)

    @torch.no_grad()
    def recall(self, vectors: CurrentVectors) -> float:
        """Mean over the users of the share of their targets among the best k; a collective.

        A target's place is one more than the items, not seen, that score higher; equal scores
        are ordered by index, as in `models.retrieval`.
        """
        users = self._all_users(vectors)
        own = self._all_items(vectors, self._target)
        score = (users[self._user_of] * own).sum(1) + self._prior[self._target]
        above = torch.zeros_like(self._target)
        margin = _TIE * score.abs().clamp(min=1.0)
        for first, items in self._blocks(len(self._prior), _ITEM_BLOCK):
            scores = users @ vectors.item_vectors(items).T + self._prior[items]
            inside = (self._seen_items >= first) & (self._seen_items < first + len(items))
            scores[self._seen_rows[inside], self._seen_items[inside] - first] = -torch.inf
            difference = scores[self._user_of] - score[:, None]
            better = difference > margin[:, None]
            tied = (difference.abs() <= margin[:, None]) & (items < self._target[:, None])
            better = (better | tied) & (items != self._target[:, None])
            above += better.sum(1)
        found = (collectives.total(above) < self._k).to(torch.int64)
        hits = torch.zeros_like(self._counts).index_add_(0, self._user_of, found)
        return float((hits.double() / self._counts).mean())

    def _blocks(self, size: int, block: int) -> list[tuple[int, Tensor]]:
        """This rank's part of so many things, in as many blocks on every rank."""
        world = collectives.world_size()
        start, stop = collectives.share(size, collectives.rank(), world)
        largest_share = -(-size // world)
        firsts = [start + n for n in range(0, max(1, largest_share), block)]
        return [
            (first, torch.arange(min(first, stop), min(first + block, stop), device=self._device))
            for first in firsts
        ]

    def _all_users(self, vectors: CurrentVectors) -> Tensor:
        parts = []
        for _, rows in self._blocks(len(self._users), _USER_BLOCK):
            start = int(rows[0]) if len(rows) else 0
            some = self._users.slice(start, start + len(rows)).to(self._device)
            parts.append(vectors.user_vectors(some))
        return collectives.gather_rows(torch.cat(parts))

    def _all_items(self, vectors: CurrentVectors, items: Tensor) -> Tensor:
        parts = [
            vectors.item_vectors(items[places])
            for _, places in self._blocks(len(items), _ITEM_BLOCK)
        ]
        return collectives.gather_rows(torch.cat(parts))


class ValidationSchedule:
    """When to measure, the best epoch so far, and when to stop; all ranks decide alike.

    Args:
        settings: The training.
        steps_per_epoch: Macro-batches of an epoch.
        steps: Macro-batches of the whole training.
        device: This rank's device.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        steps_per_epoch: int,
        steps: int,
        device: torch.device,
    ) -> None:
        self._settings = settings.validation
        self._patience = settings.early_stopping.patience
        self._steps_per_epoch = steps_per_epoch
        self._steps = steps
        self._device = device
        self._started = time.perf_counter()
        self._last = 0.0
        self.spent = 0.0
        """Seconds spent on measuring."""
        self._best = torch.tensor([-math.inf, 0.0, 0.0], dtype=torch.float64)

    @property
    def keeps_best(self) -> bool:
        """Whether the weights of the best epoch are the result."""
        return self._patience is not None

    @property
    def best_step(self) -> int | None:
        """Step at the end of the best epoch so far; None before the first one."""
        return int(self._best[1]) or None

    @property
    def best_recall(self) -> float:
        """Recall at the end of the best epoch so far."""
        return float(self._best[0])

    @property
    def exhausted(self) -> bool:
        """Whether as many epochs as the patience allows brought nothing better."""
        return self._patience is not None and int(self._best[2]) >= self._patience

    def due(self, done: int, reporting: bool) -> bool:
        """Whether to measure after so many steps; a collective.

        Args:
            done: Steps taken.
            reporting: Whether the step is reported anyway.
        """
        if done == self._steps or (self.keeps_best and done % self._steps_per_epoch == 0):
            return True
        if self._settings.every is not None:
            return done % self._settings.every == 0
        if not reporting:
            return False
        elapsed = time.perf_counter() - self._started
        affordable = self.spent + self._last <= self._settings.time_share * elapsed
        # Clocks differ: the first rank's counts.
        mine = int(affordable and collectives.rank() == 0)
        return bool(collectives.maximum([mine], self._device)[0])

    def measure(self, validation: Validation, vectors: CurrentVectors) -> float:
        """Measures recall; a collective."""
        began = time.perf_counter()
        recall = validation.recall(vectors)
        self._last = time.perf_counter() - began
        self.spent += self._last
        return recall

    def judge(self, done: int, recall: float) -> bool:
        """Takes note of a recall; returns whether it ends an epoch that is the best so far."""
        if not self.keeps_best or done % self._steps_per_epoch:
            return False
        if recall > float(self._best[0]):
            self._best.copy_(torch.tensor([recall, done, 0.0], dtype=torch.float64))
            return True
        self._best[2] += 1
        return False

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, sharing its memory."""
        return {"best": self._best}
