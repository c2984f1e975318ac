"""One optimizer step over a macro-batch: exact accumulation with one exchange of rows.

The rows that a macro-batch touches are fetched once and detached. Micro-batches pool them and
run the towers locally, each adding its gradient to the detached rows. Then the rows' gradients
go through the sharded tables once, and the towers take one step. The result is the gradient of
the mean loss over the whole macro-batch, at any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from models import collectives
from models.config import LossSettings, ModelSettings
from models.corpus import Corpus
from models.embedding_tables import EmbeddingTables
from models.encoder import Encoder
from models.jagged import Jagged
from models.loss import Candidates, sampled_softmax
from models.negatives import AliasSampler
from models.reader import MacroBatch, MicroBatch
from models.seeds import generator_for
from models.two_tower import TwoTower

# A bitmap over the table finds unique rows faster than sorting does, unless the table is much
# larger than the batch.
_BITMAP_ROWS_PER_CODE = 8


@dataclass(frozen=True)
class StepOutcome:
    """What a step saw.

    Attributes:
        loss: This rank's part of the mean loss of the macro-batch; sum it over ranks.
        rows: Rows fetched by this rank, over all tables.
        codes: Codes that refer to them.
    """

    loss: Tensor
    rows: int
    codes: int


class MacroStep:
    """Trains on macro-batches.

    Args:
        model: Settings of the model.
        loss: Settings of the loss.
        towers: The towers, on this rank's device.
        tables: The embedding tables.
        optimizer: Optimizer of the towers.
        encoder: Codes of users and items.
        corpus: The items.
        sampler: Source of the extra negatives; None for in-batch negatives only.
        seed: Seed of the sampling.
        device: This rank's device.
    """

    def __init__(
        self,
        model: ModelSettings,
        loss: LossSettings,
        towers: TwoTower,
        tables: EmbeddingTables,
        optimizer: torch.optim.Optimizer,
        encoder: Encoder,
        corpus: Corpus,
        sampler: AliasSampler | None,
        seed: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._loss = loss
        self._towers = towers
        self._tables = tables
        self._optimizer = optimizer
        self._encoder = encoder
        self._log_share = corpus.log_share()
        self._sampler = sampler
        self._seed = seed
        self._device = device

    def run(self, macro: MacroBatch) -> StepOutcome:
        """One optimizer step; every rank takes part with its share of the same macro-batch."""
        encoded = [self._encode(macro, number) for number in range(len(macro.micro))]
        unique, codes = self._unique(encoded)
        fetched = self._tables.fetch(unique)
        self._optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self._device)
        for part in encoded:
            loss = self._micro_loss(part, fetched.rows) / max(macro.weight, 1e-12)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self._tables.update(fetched)
        collectives.sum_gradients(self._towers.parameters())
        self._optimizer.step()
        return StepOutcome(total, sum(u.numel() for u in unique.values()), codes)

    def _encode(self, macro: MacroBatch, number: int) -> _Encoded:
        micro = macro.micro[number]
        world, rank = collectives.world_size(), collectives.rank()
        negatives = self._negatives(macro.step, number)
        start, stop = collectives.share(len(negatives), rank, world)
        local = micro.local.to(self._device)
        items = torch.cat([local.item, negatives[start:stop].to(self._device)])
        return _Encoded(
            micro=micro,
            weight=local.weight,
            negatives=negatives,
            user=self._encoder.user_codes(local.users),
            item=self._encoder.item_codes(items),
        )

    def _negatives(self, step: int, number: int) -> Tensor:
        """Extra negatives of a micro-batch: the same on every rank and after a resume."""
        if self._sampler is None or self._loss.num_negatives == 0:
            return torch.zeros(0, dtype=torch.int64)
        generator = generator_for(self._seed, "negatives", step, number)
        return self._sampler.sample(self._loss.num_negatives, generator)

    def _unique(self, encoded: Iterable[_Encoded]) -> tuple[dict[str, Tensor], int]:
        """Row numbers that the macro-batch touches; codes become positions in them."""
        uses: dict[str, list[tuple[dict[str, Jagged], str]]] = {}
        for part in encoded:
            for tower, codes in ((self._model.user, part.user), (self._model.item, part.item)):
                for f in tower.features:
                    uses.setdefault(f.table, []).append((codes, f.name))
        unique, total = {}, 0
        for table in self._tables.names:
            places = uses.get(table, [])
            values = [codes[name].values for codes, name in places]
            joined = torch.cat(values) if values else torch.zeros(0, dtype=torch.int64)
            joined = joined.to(self._device)
            total += joined.numel()
            unique[table], positions = unique_rows(joined, self._tables.rows[table])
            for (codes, name), part_of_all in zip(
                places, torch.split(positions, [len(v) for v in values]), strict=True
            ):
                codes[name] = Jagged(part_of_all, codes[name].offsets)
        return unique, total

    def _micro_loss(self, part: _Encoded, rows: Mapping[str, Tensor]) -> Tensor:
        users = self._towers.user_vectors(rows, part.user)
        local = self._towers.item_vectors(rows, part.item)
        items = _gather_candidates(local, len(part.micro.items), len(part.negatives))
        candidates = self._candidates(part)
        own = torch.arange(len(users), device=self._device) + part.micro.start
        return sampled_softmax(
            users,
            items,
            candidates,
            own,
            part.weight,
            temperature=self._model.temperature,
            logq=self._loss.logq,
            alpha=self._loss.logq_alpha,
            chunk=self._loss.chunk,
        )

    def _candidates(self, part: _Encoded) -> Candidates:
        in_batch = part.micro.items
        log_q = self._log_share[in_batch]
        if self._sampler is not None and len(part.negatives):
            log_q = torch.cat([log_q, self._sampler.log_q[part.negatives]])
        item = torch.cat([in_batch, part.negatives])
        return Candidates(item.to(self._device), log_q.to(self._device))


@dataclass(frozen=True)
class _Encoded:
    """A micro-batch with its negatives, as codes and later as positions in the fetched rows."""

    micro: MicroBatch
    weight: Tensor
    negatives: Tensor
    user: dict[str, Jagged]
    item: dict[str, Jagged]


def unique_rows(codes: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The different codes, ascending, and the position of each code among them.

    Args:
        codes: Row numbers, int64 `[V]`.
        rows: Rows of the table.

    Returns:
        Unique codes `[U]` and positions `[V]`.
    """
    if rows > _BITMAP_ROWS_PER_CODE * codes.numel():
        unique, positions = torch.unique(codes, return_inverse=True)
        return unique, positions
    used = torch.zeros(rows, dtype=torch.bool, device=codes.device)
    used[codes] = True
    place = used.cumsum(0) - 1
    return used.nonzero().flatten(), place[codes]


def _gather_candidates(local: Tensor, in_batch: int, negatives: int) -> Tensor:
    """Candidate vectors of all ranks: the micro-batch's items, then the negatives."""
    world = collectives.world_size()
    if world == 1:
        return local
    parts = [
        [stop - start for start, stop in (collectives.share(size, r, world) for r in range(world))]
        for size in (in_batch, negatives)
    ]
    sizes = [a + b for a, b in zip(*parts, strict=True)]
    everything = torch.split(
        collectives.gather_shares(local, sizes),
        [size for pair in zip(*parts, strict=True) for size in pair],
    )
    return torch.cat([*everything[0::2], *everything[1::2]])
