"""Which items the examples of a macro-batch are compared with.

A pool is a micro-batch, or the whole macro-batch: its examples' items, extra negatives drawn for
it, and what a bank remembers of earlier pools. All ranks make the same pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.batch import Batch
from models.candidates import Candidates, Positives, known_columns, merge_draws
from models.config import LossSettings
from models.corpus import Corpus
from models.distinct import Distinct
from models.jagged import Jagged
from models.negatives import AliasSampler
from models.reader import MacroBatch, MicroBatch
from models.seeds import generator_for
from models.vector_bank import VectorBank


@dataclass(frozen=True)
class Pool:
    """Examples that are negatives of each other.

    Attributes:
        local: This rank's examples of each of the pool's micro-batches.
        own: Places of this rank's examples among all A examples of the pool, int64 `[B]`.
        user: Index of the user of every example, int64 `[A]`.
        item: Corpus index of each draw: the examples' items, then the extra negatives; `[N]`.
        log_weight: Log of the weight of each draw, `[N]`.
        candidates: The different items of the draws.
        column: Their column for each draw, int64 `[N]`.
    """

    local: Sequence[Batch]
    own: Tensor
    user: Tensor
    item: Tensor
    log_weight: Tensor
    candidates: Candidates
    column: Tensor


class NegativePool:
    """Makes pools.

    Args:
        settings: Settings of the loss.
        corpus: The items.
        sampler: Source of the extra negatives; None for none.
        dim: Width of the item vectors.
        seed: Seed of the sampling.
        device: This rank's device.
    """

    def __init__(
        self,
        settings: LossSettings,
        corpus: Corpus,
        sampler: AliasSampler | None,
        dim: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self._settings = settings
        self._sampler = sampler if settings.num_negatives else None
        self._seed = seed
        self._device = device
        self._in_batch = self._log_weights(corpus.log_share()).to(device)
        if self._sampler is not None:
            self._sampled = self._log_weights(self._sampler.log_q).to(device)
        self._distinct = Distinct(len(corpus), device)
        self._bank = VectorBank(settings.bank, dim, device) if settings.bank else None

    def pools(self, macro: MacroBatch) -> list[Pool]:
        """The pools of a macro-batch, in the order in which they are to be compared."""
        numbered = list(enumerate(macro.micro))
        groups = [[one] for one in numbered]
        if self._settings.pool == "macro_batch":
            groups = [numbered]
        return [self._pool(macro.step, group) for group in groups]

    def compare(self, pool: Pool, vectors: Tensor) -> tuple[Tensor, Candidates, Positives]:
        """What the pool's examples are compared with, in the end.

        Args:
            pool: The pool.
            vectors: Vectors of its candidates `[C, D]`.

        Returns:
            Vectors of all candidates, and what they and this rank's positives are. The pool's own
            candidates come first.
        """
        candidates, items = pool.candidates, vectors
        old = torch.zeros(0, dtype=torch.int64, device=self._device)
        if self._bank is not None:
            old, log_weight, remembered = self._bank.draws()
            columns, newest = self._with(old, candidates)
            # What is in the pool has its present vector, with gradient; the rest the newest one.
            items = torch.cat([vectors, remembered[newest].to(vectors.dtype)])
            size = len(items)
            weight = torch.zeros(size, dtype=torch.float64, device=self._device)
            weight[: len(vectors)] = candidates.log_weight.double().exp()
            weight.index_add_(0, columns, log_weight.double().exp())
            draws = torch.zeros(size, dtype=torch.int64, device=self._device)
            draws[: len(vectors)] = candidates.draws
            draws.index_add_(0, columns, torch.ones_like(columns))
            candidates = Candidates(
                torch.cat([candidates.item, old[newest]]),
                weight.log().to(candidates.log_weight.dtype),
                draws,
                candidates.total + len(old),
            )
        known: Sequence[Jagged] = ()
        if self._settings.mask_known:
            self._distinct(candidates.item)
            examples = pool.user.numel()
            history = Jagged.concat([batch.users.history for batch in pool.local])
            known = known_columns(
                self._distinct, history, pool.user, pool.item[:examples], pool.own
            )
        positives = Positives(pool.column[pool.own], pool.log_weight[pool.own], known)
        return items, candidates, positives

    def remember(self, pool: Pool, vectors: Tensor) -> None:
        """Tells the bank of a pool that was compared.

        Args:
            pool: The pool.
            vectors: Vectors of its candidates `[C, D]`.
        """
        if self._bank is not None:
            self._bank.push(pool.item, pool.log_weight, vectors.detach()[pool.column])

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, sharing its memory."""
        return {} if self._bank is None else self._bank.state()

    def _with(self, old: Tensor, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Columns of remembered draws beside a pool's candidates.

        Returns:
            The column of each draw; and, for each column after the candidates', its newest draw.
        """
        # An item counts where it stands last, so the candidates keep their order, at the end.
        different, place = self._distinct(torch.cat([old, candidates.item]))
        size = len(candidates.item)
        extra = len(different) - size
        columns = torch.where(place >= extra, place - extra, place + size)[: len(old)]
        return columns, self._distinct.last_place(different[:extra])

    def _pool(self, step: int, group: Sequence[tuple[int, MicroBatch]]) -> Pool:
        micro = [one for _, one in group]
        item = torch.cat([one.items for one in micro]).to(self._device)
        log_weight = self._in_batch[item]
        if self._sampler is not None:
            # The same on every rank and after a resume.
            drawn = torch.cat([self._draw(step, number) for number, _ in group])
            drawn = drawn.to(self._device)
            item, log_weight = (
                torch.cat([item, drawn]),
                torch.cat([log_weight, self._sampled[drawn]]),
            )
        own, first = [], 0
        for one in micro:
            own.append(torch.arange(len(one.local)) + (first + one.start))
            first += len(one.items)
        candidates, column = merge_draws(self._distinct, item, log_weight)
        return Pool(
            local=[one.local.to(self._device) for one in micro],
            own=torch.cat(own).to(self._device),
            user=torch.cat([one.users for one in micro]).to(self._device),
            item=item,
            log_weight=log_weight,
            candidates=candidates,
            column=column,
        )

    def _draw(self, step: int, number: int) -> Tensor:
        assert self._sampler is not None
        generator = generator_for(self._seed, "negatives", step, number)
        return self._sampler.sample(self._settings.num_negatives, generator)

    def _log_weights(self, log_q: Tensor) -> Tensor:
        if self._settings.logq == "off" or self._settings.logq_alpha == 0:
            return torch.zeros_like(log_q)
        return log_q * -self._settings.logq_alpha
