"""One optimizer step over a macro-batch: exact accumulation with one exchange of rows.

The rows that a macro-batch touches are fetched once and detached. Micro-batches pool them and
run the towers locally, each adding its gradient to the detached rows. Then the rows' gradients
go through the sharded tables once, and the towers take one step. The result is the gradient of
the mean loss over the whole macro-batch, at any number of ranks. Each rank computes its share of
the items of all micro-batches, and one exchange brings everybody the vectors; a second one brings
their gradients back.

Accumulation does not enlarge the pool of negatives: an example is compared with its micro-batch.
With `loss.pool: macro_batch` the vectors of the whole macro-batch are computed first, without a
graph, and compared with each other; a second pass then takes the gradients of the vectors through
the towers, micro-batch by micro-batch (Gao et al., "Scaling Deep Contrastive Learning Batch Size
under Memory Limited Setup", RepL4NLP 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models import collectives
from models.config import ModelSettings
from models.distinct import Distinct
from models.embedding_tables import EmbeddingTables
from models.encoder import Encoder, TowerInputs
from models.jagged import Jagged
from models.loss import Loss
from models.negative_pool import NegativePool, Pool
from models.optimization import Optimization
from models.reader import MacroBatch
from models.skew import HotRow
from models.step_clock import StepClock
from models.step_load import StepLoad
from models.two_tower import TwoTower

Codes = TowerInputs
Tower = Callable[[Mapping[str, Tensor], Codes], Tensor]


@dataclass(frozen=True)
class StepOutcome:
    """What a step saw.

    Attributes:
        loss: This rank's part of the mean loss of the macro-batch; sum it over ranks.
        rows: Rows fetched by this rank, over all tables.
        codes: Codes that refer to them.
        repeats: Draws that were no negatives because they repeat a user's own item, of this
            rank's examples.
        known: Draws that were no negatives because the user is known to like them.
        columns: Different items that the examples were compared with, over all pools.
        norm: Norm of the gradient before it was limited, or None without a limit.
        load: What was asked of each rank; None where nothing is exchanged.
        hot: Most frequent row of each table that is spread, and its share of the table's codes,
            of this rank; only with `load`.
    """

    loss: Tensor
    rows: int
    codes: int
    repeats: Tensor
    known: Tensor
    columns: int
    norm: Tensor | None
    load: StepLoad | None
    hot: Mapping[str, HotRow]


@dataclass(frozen=True)
class _Part:
    """A pool as codes, which become positions in the rows that it touches.

    Attributes:
        pool: What is compared.
        users: Codes of this rank's users, one entry for each micro-batch.
        items: Codes of this rank's share of the different items, in as many portions.
        sizes: How many of the different items each rank has.
        weight: Weight of each of this rank's examples.
        places: Where the rows that the pool touches are among the fetched ones, by table; the
            codes become positions in these. Empty where the pool touches all of them.
    """

    pool: Pool
    users: Sequence[Codes]
    items: Sequence[Codes]
    sizes: Sequence[int]
    weight: Tensor
    places: dict[str, Tensor]


@dataclass
class _Totals:
    loss: Tensor
    repeats: Tensor
    known: Tensor
    columns: int = 0


class MacroStep:
    """Trains on macro-batches.

    Args:
        model: Settings of the model.
        loss: The loss.
        towers: The towers, on this rank's device.
        tables: The embedding tables.
        optimization: Both optimizers.
        encoder: Codes of users and items.
        negatives: Which items examples are compared with.
        device: This rank's device.
    """

    def __init__(
        self,
        model: ModelSettings,
        loss: Loss,
        towers: TwoTower,
        tables: EmbeddingTables,
        optimization: Optimization,
        encoder: Encoder,
        negatives: NegativePool,
        device: torch.device,
    ) -> None:
        self._model = model
        self._loss = loss
        self._towers = towers
        self._tables = tables
        self._optimization = optimization
        self._encoder = encoder
        self._negatives = negatives
        self._device = device
        self.clock = StepClock()
        """Time of the parts of the steps."""
        self._distinct = {name: Distinct(tables.rows[name], device) for name in tables.names}

    def run(self, macro: MacroBatch) -> StepOutcome:
        """One optimizer step; every rank takes part with its share of the same macro-batch."""
        with self.clock.part("encoding"):
            parts = [self._encode(pool) for pool in self._negatives.pools(macro)]
            unique, codes, hot = self._unique(parts)
        self._optimization.begin(macro.step)
        with self.clock.part("fetching rows"):
            fetched = self._tables.fetch(unique)
        load = self._tables.load
        nothing = torch.zeros((), dtype=torch.int64, device=self._device)
        totals = _Totals(torch.zeros((), device=self._device), nothing, nothing)
        share = 1.0 / max(macro.weight, 1e-12)
        scale = share * self._optimization.scale.factor
        # Several ranks exchange the vectors of all pools at once: they would wait for each other at
        # every pool. A single rank has nothing to wait for, and keeps one pool at a time.
        alone = collectives.world_size() == 1
        for pools in [[part] for part in parts] if alone else [parts]:
            self._gradients(pools, fetched.rows, scale, totals)
        with self.clock.part("updating"):
            norm = self._optimization.step(fetched)
        return StepOutcome(
            loss=totals.loss * share,
            rows=sum(u.numel() for u in unique.values()),
            codes=codes,
            repeats=totals.repeats,
            known=totals.known,
            columns=totals.columns,
            norm=norm,
            load=load,
            hot=hot,
        )

    def _encode(self, pool: Pool) -> _Part:
        world, rank = collectives.world_size(), collectives.rank()
        items = pool.candidates.item
        shares = [collectives.share(len(items), r, world) for r in range(world)]
        mine = items[slice(*shares[rank])]
        # Towers never see more at once than a micro-batch and its negatives.
        portion = max(1, -(-len(mine) // len(pool.local)))
        return _Part(
            pool=pool,
            users=[self._encoder.user_codes(batch.users) for batch in pool.local],
            items=[self._encoder.item_codes(some) for some in torch.split(mine, portion)],
            sizes=[stop - start for start, stop in shares],
            weight=torch.cat([batch.weight for batch in pool.local]),
            places={},
        )

    def _unique(self, parts: Sequence[_Part]) -> tuple[dict[str, Tensor], int, dict[str, HotRow]]:
        """Row numbers that the macro-batch touches; codes become positions in those of a part."""
        unique, hot, total = {}, {}, 0
        uses = [self._uses(part) for part in parts]
        for table in self._tables.names:
            touched, counts = [], []
            for use in uses:
                rows, positions = self._positions(table, use[table])
                total += positions.numel()
                touched.append(rows)
                if table in self._tables.exchanged:
                    counts.append(torch.bincount(positions, minlength=len(rows)))
            if len(parts) == 1:
                unique[table], found = touched[0], counts
            else:
                unique[table], positions = self._distinct[table](torch.cat(touched))
                places = torch.split(positions, [len(rows) for rows in touched])
                for part, places_of_part in zip(parts, places, strict=True):
                    part.places[table] = places_of_part
                sums = torch.zeros_like(unique[table])
                found = [sums.index_add_(0, positions, torch.cat(counts))] if counts else []
            if found and found[0].numel():
                hot[table] = _hottest(unique[table], found[0])
        return unique, total, hot

    def _positions(self, table: str, places: Sequence[tuple[Codes, str]]) -> tuple[Tensor, Tensor]:
        """Different rows of some codes, whose values become positions in them; and all of these."""
        values = [codes[name].values for codes, name in places]
        joined = torch.cat(values) if values else self._tables.no_rows
        rows, positions = self._distinct[table](joined.to(self._device))
        parts = torch.split(positions, [len(v) for v in values])
        for (codes, name), part in zip(places, parts, strict=True):
            codes[name] = Jagged(part, codes[name].offsets)
        return rows, positions

    def _uses(self, part: _Part) -> dict[str, list[tuple[Codes, str]]]:
        """Where a part's codes of each table stand."""
        uses: dict[str, list[tuple[Codes, str]]] = {name: [] for name in self._tables.names}
        for tower, portions in ((self._model.user, part.users), (self._model.item, part.items)):
            for f in tower.coded:
                uses[f.table] += [(codes, f.name) for codes in portions]
        return uses

    def _gradients(
        self, parts: Sequence[_Part], fetched: Mapping[str, Tensor], scale: float, totals: _Totals
    ) -> None:
        """Adds the gradients of some pools to those of the towers and of the fetched rows."""
        with self.clock.part("towers forward"):
            rows = [_touched(part, fetched) for part in parts]
            items = [
                _Vectors(self._towers.item_vectors, touched, part.items)
                for part, touched in zip(parts, rows, strict=True)
            ]
        sizes = [part.sizes for part in parts]
        with self.clock.part("exchanging vectors"):
            everyones = collectives.gather_shares([own.values for own in items], sizes)
        for part, touched, candidates in zip(parts, rows, everyones, strict=True):
            with self.clock.part("towers forward"):
                users = _Vectors(self._towers.user_vectors, touched, part.users)
            mine = users.values.requires_grad_()
            loss = self._compare(part, mine, candidates.requires_grad_(), totals)
            with self.clock.part("towers backward"):
                (loss * scale).backward()  # type: ignore[no-untyped-call]
                users.backward(_gradient(mine))
            totals.loss += loss.detach()
        with self.clock.part("exchanging vectors"):
            returned = collectives.sum_shares([_gradient(c) for c in everyones], sizes)
        with self.clock.part("towers backward"):
            for part, touched, own, gradient in zip(parts, rows, items, returned, strict=True):
                own.backward(gradient)
                _give_back(part, touched, fetched)

    def _compare(self, part: _Part, users: Tensor, items: Tensor, totals: _Totals) -> Tensor:
        """Sum of the losses of this rank's examples of a pool, given its candidates' vectors."""
        with self.clock.part("choosing negatives"):
            against, candidates, positives = self._negatives.compare(part.pool, items)
        with self.clock.part("scores and loss"):
            loss = self._loss(users, against, candidates, positives, part.weight)
        self._negatives.remember(part.pool, items)
        repeats, known = positives.left_out(candidates)
        totals.repeats, totals.known = totals.repeats + repeats, totals.known + known
        totals.columns += len(candidates.item)
        return loss


class _Vectors:
    """What a tower makes of some portions of codes, and the way back.

    One portion keeps its activations. Several are computed without, and again in the way back,
    so that only one portion's are there at a time.

    Args:
        tower: The tower.
        rows: Rows of the tables.
        portions: Codes of users or items.
    """

    def __init__(self, tower: Tower, rows: Mapping[str, Tensor], portions: Sequence[Codes]) -> None:
        self._tower, self._rows, self._portions = tower, rows, portions
        self._kept: Tensor | None = None
        if len(portions) == 1:
            self._kept = tower(rows, portions[0])
            self.values = self._kept.detach()
            """Vectors `[N, D]`, without their history."""
        else:
            with torch.no_grad():
                self.values = torch.cat([tower(rows, codes) for codes in portions])

    def backward(self, gradient: Tensor) -> None:
        """Adds gradients to the tower and the rows.

        Args:
            gradient: Of `values`.
        """
        if self._kept is not None:
            self._kept.backward(gradient)  # type: ignore[no-untyped-call]
            return
        first = 0
        for codes in self._portions:
            again = self._tower(self._rows, codes)
            again.backward(gradient[first : first + len(again)])  # type: ignore[no-untyped-call]
            first += len(again)


def _gradient(vectors: Tensor) -> Tensor:
    return torch.zeros_like(vectors) if vectors.grad is None else vectors.grad


def _touched(part: _Part, fetched: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The rows that a part touches, as leaves.

    A gradient of all fetched rows for each micro-batch would cost more than the towers.
    """
    if not part.places:
        return fetched
    return {
        table: fetched[table].detach().index_select(0, places).requires_grad_()
        for table, places in part.places.items()
    }


def _give_back(part: _Part, rows: Mapping[str, Tensor], fetched: Mapping[str, Tensor]) -> None:
    """Adds the gradients of a part's rows to those of the fetched ones."""
    for table, places in part.places.items():
        whole, gradient = fetched[table], rows[table].grad
        if gradient is None:
            continue
        if whole.grad is None:
            whole.grad = torch.zeros_like(whole)
        whole.grad.index_add_(0, places, gradient)


def _hottest(unique: Tensor, counts: Tensor) -> HotRow:
    """The most frequent row but the padding row, and its share of the codes."""
    count, place = counts.masked_fill(unique == 0, 0).max(0)
    return int(unique[place]), int(count) / int(counts.sum())
