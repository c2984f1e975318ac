"""What a macro-batch asks of each rank: rows, codes, products, bytes on the way.

These are expectations under stated assumptions about the IDs; nothing is trained. Light on
purpose (no torch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from models.config import (
    EmbeddingTableSettings,
    FeatureSettings,
    ModelSettings,
    TrainingSettings,
)
from models.memory_estimate import Placement, tower_parameters
from models.zipf import Floats, Zipf

_FLOAT, _ID = 4, 4  # bytes
_PASSES = 3  # of a product: forward, and backward to its input and to its weights


@dataclass(frozen=True)
class DataShape:
    """What is assumed of the data.

    Attributes:
        items: Items in the corpus.
        exponent: Of Zipf's law, for all IDs.
        elements: Mean elements of a feature of kind list or history, by name.
        hashes: Codes of one element, by table; by default 1.
    """

    items: int
    exponent: float = 1.05
    elements: Mapping[str, float] = field(default_factory=dict)
    hashes: Mapping[str, int] = field(default_factory=dict)

    def codes_of(self, feature: FeatureSettings) -> float:
        """Mean codes of an example's feature."""
        elements = 1.0
        if feature.kind == "history":
            elements = min(self.elements.get(feature.name, feature.max_length / 2), 1e9)
        elif feature.kind == "neighbours":
            elements = min(self.elements.get(feature.name, feature.max_length), self.items)
        elif feature.kind == "list":
            elements = self.elements.get(feature.name, 4.0)
        return elements * self.hashes.get(feature.table, 1)


@dataclass(frozen=True)
class StepWork:
    """Work of one macro-batch; of the rank that has most of it, where ranks differ.

    Attributes:
        examples: Examples over all ranks.
        pools: Groups of examples that are compared with each other, one after another.
        codes: Codes that are looked up.
        pooled_bytes: Bytes of the rows that the codes stand for, read from the fetched ones.
        fetched_bytes: Bytes of the different rows, as fetched.
        moved_bytes: Bytes of the rows that the rank moves for all ranks.
        merged_bytes: Bytes of gradients that come from other ranks.
        tower_flops: Floating-point operations of the towers.
        score_flops: Likewise of scores and loss.
        known: Elements of histories that are left out of the negatives.
        rows_bytes: Bytes of rows, numbers and gradients that the rank sends, or gets, at the most
            of both, all directions added up.
        pooled_exchange_bytes: What an exchange of pooled vectors at every micro-batch would send.
        vector_bytes: Bytes of item vectors and their gradients that the rank gets.
        tower_bytes: Bytes of the towers' gradients.
    """

    examples: float
    pools: int
    codes: float
    pooled_bytes: float
    fetched_bytes: float
    moved_bytes: float
    merged_bytes: float
    tower_flops: float
    score_flops: float
    known: float
    rows_bytes: float
    pooled_exchange_bytes: float
    vector_bytes: float
    tower_bytes: float


def step_work(
    model: ModelSettings,
    tables: Mapping[str, EmbeddingTableSettings],
    table_rows: Mapping[str, int],
    training: TrainingSettings,
    ranks: int,
    placement: Placement,
    data: DataShape,
) -> StepWork:
    """Expected work of a macro-batch.

    Args:
        model: The model.
        tables: Settings of the embedding tables by name.
        table_rows: Rows of each.
        training: The training; batch sizes are those of all ranks together.
        ranks: Number of ranks.
        placement: Where the parts of the tables are.
        data: What is assumed of the data.
    """
    batches = _Batches(model, training, ranks, data)
    rows = _different_rows(batches, tables, table_rows)
    together = _different_rows(_Batches(model, training, 1, data), tables, table_rows)
    wide = {n: t.dim * _FLOAT for n, t in tables.items()}
    served, kept, moved, merged = (np.zeros(ranks) for _ in range(4))
    asked = copied = 0.0
    away = (ranks - 1) / ranks
    for name, table in tables.items():
        if table.sharding == "data_parallel":
            # The gradient of the whole table is added up over ranks.
            moved += together[name].total * wide[name]
            copied += 2 * table_rows[name] * (wide[name] + _FLOAT) * away
            continue
        stored = 2 if table.dtype == "fp16" else 4
        # A row there, its number, and its gradient back.
        message = table.dim * (stored + _FLOAT) + _ID
        first = 0
        for shard in placement[name]:
            cut = shard.rows < table_rows[name]
            window = (first, first + shard.rows) if cut else (0, table_rows[name])
            first += shard.rows if cut else 0
            columns = shard.columns / table.dim
            touched = rows[name].inside(*window) * columns
            served[shard.rank] += touched * message * (ranks - 1)
            kept[shard.rank] += touched * message
            merged[shard.rank] += touched * wide[name] * (ranks - 1)
            moved[shard.rank] += together[name].inside(*window) * columns * wide[name]
        asked += rows[name].total * message
    features = [*model.user.coded, *model.item.coded]
    vectors = 2 * batches.pools * batches.columns * model.dim * _FLOAT * away
    parameters = {
        side: tower_parameters(tower, tables, model.dim)
        for side, tower in (("user", model.user), ("item", model.item))
    }
    flops = (
        2.0
        * batches.passes
        * (batches.users * parameters["user"] + batches.item_rows * parameters["item"])
    )
    scores = batches.users * batches.columns
    return StepWork(
        examples=batches.examples,
        pools=batches.pools,
        codes=sum(batches.codes.values()),
        pooled_bytes=sum(n * wide[t] for t, n in batches.codes_by_table().items()),
        fetched_bytes=sum(rows[n].total * wide[n] for n in tables),
        moved_bytes=float(moved.max()),
        merged_bytes=float(merged.max()),
        tower_flops=flops,
        score_flops=2.0 * 3 * scores * model.dim,
        known=batches.known,
        rows_bytes=float(np.maximum(served, asked - kept).max()) + copied,
        pooled_exchange_bytes=batches.users * away * sum(2.0 * wide[f.table] for f in features),
        vector_bytes=vectors,
        tower_bytes=2.0 * sum(parameters.values()) * _FLOAT * away,
    )


class _Batches:
    """Numbers of examples, items and codes of a rank in a macro-batch.

    Args:
        model: The model.
        training: The training.
        ranks: Number of ranks.
        data: What is assumed of the data.
    """

    def __init__(
        self, model: ModelSettings, training: TrainingSettings, ranks: int, data: DataShape
    ) -> None:
        two_passes = training.loss.pool == "macro_batch"
        self.model, self.data, self.ranks = model, data, ranks
        self.pools = 1 if two_passes else training.accumulate
        self.examples = float(training.batch_size * training.accumulate)
        self.pool = self.examples / self.pools
        self.users = self.examples / ranks
        self.corpus = Zipf(data.items, data.exponent)
        extra = training.loss.num_negatives if training.loss.negatives else 0
        extra *= training.accumulate // self.pools
        in_batch = self.corpus.seen(self.pool)
        sampled = self._sampled(training, extra)
        self.drawn: Floats = 1 - (1 - in_batch) * (1 - sampled)
        own = self.corpus.expected(self.drawn)
        self.columns = own + training.loss.bank
        # A rank computes the vectors of its share of each pool's items.
        self.item_rows = self.pools * own / ranks
        history = [f for f in model.user.coded if f.kind == "history"]
        longest = max((data.codes_of(f) for f in history), default=0.0)
        self.known = self.users * longest if training.loss.mask_known else 0.0
        self.codes = {
            **{f.name: self.users * data.codes_of(f) for f in model.user.coded},
            **{f.name: self.item_rows * data.codes_of(f) for f in model.item.coded},
        }
        self.passes = _PASSES + (1 if two_passes else 0)
        if training.checkpoint_activations:
            self.passes += 1

    def _sampled(self, training: TrainingSettings, extra: int) -> Floats:
        """Probability that an item is among the extra negatives."""
        if extra == 0:
            return np.zeros_like(self.corpus.probability)
        if training.loss.negatives == "popularity":
            return self.corpus.seen(extra)
        flat = np.full_like(self.corpus.probability, 1.0 / max(1, self.data.items))
        found: Floats = -np.expm1(extra * np.log1p(-np.minimum(flat, 0.5)))
        return found

    def codes_by_table(self) -> dict[str, float]:
        """Codes of each table."""
        found: dict[str, float] = {}
        for f in (*self.model.user.coded, *self.model.item.coded):
            found[f.table] = found.get(f.table, 0.0) + self.codes[f.name]
        return found


def _different_rows(
    batches: _Batches,
    tables: Mapping[str, EmbeddingTableSettings],
    table_rows: Mapping[str, int],
) -> dict[str, _Rows]:
    """Different rows of each table that a rank touches in a macro-batch."""
    found = {}
    # An item is in a rank's share of a pool by chance.
    missed = 1 - batches.drawn / batches.ranks
    items_seen = 1 - missed**batches.pools
    different_items = batches.corpus.expected(items_seen)
    for name in tables:
        ids = Zipf(table_rows[name], batches.data.exponent)
        untouched = np.ones_like(ids.probability)
        for f in batches.model.user.coded:
            if f.table == name:
                untouched *= 1 - ids.seen(batches.codes[f.name])
        for f in batches.model.item.coded:
            if f.table != name:
                continue
            if f.kind == "id" and table_rows[name] >= batches.data.items // 2:
                # IDs of items: hot in the table as in the corpus.
                share = np.interp(np.log(_middle(ids)), np.log(_middle(batches.corpus)), items_seen)
                untouched *= 1 - share
            else:
                untouched *= 1 - ids.seen(different_items * batches.data.codes_of(f))
        found[name] = _Rows(ids, 1 - untouched)
    return found


class _Rows:
    """Expected different rows of a table, the hottest IDs first.

    Args:
        ids: The table's IDs.
        touched: Probability that an ID of each group is touched.
    """

    def __init__(self, ids: Zipf, touched: Floats) -> None:
        self._borders = np.concatenate([[0.0], np.cumsum(ids.size)])
        self._below = np.concatenate([[0.0], np.cumsum(ids.size * touched)])

    @property
    def total(self) -> float:
        """All of them."""
        return float(self._below[-1])

    def inside(self, first: float, last: float) -> float:
        """Those of the rows from `first` to `last`."""
        low, high = np.interp([first, last], self._borders, self._below)
        return float(high - low)


def _middle(ids: Zipf) -> Floats:
    """Rank of the middle ID of each group."""
    last = np.cumsum(ids.size)
    middle: Floats = last - (ids.size - 1) / 2
    return middle
