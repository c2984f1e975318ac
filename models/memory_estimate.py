"""How much memory each rank of a training needs at most, from its settings alone.

Light on purpose (no torch): whoever sizes a cluster asks the same function as the training, which
refuses to start where a rank has less.

What is uncertain is counted as if it were large: every code of a macro-batch another row, every
draw another item. Long-tailed IDs repeat, so a step usually makes a fraction of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from models.config import (
    EmbeddingTableSettings,
    FeatureSettings,
    ModelSettings,
    OptimizerSettings,
    TowerSettings,
    TrainingSettings,
)

PROCESS_BYTES = 700 << 20
"""What a training process holds before it reads anything: Python, PyTorch and TorchRec."""
LIST_ELEMENTS = 4.0
"""Elements of a list feature of which nothing is known."""
FILE_ROWS = 100_000
"""Rows of a file of training examples of which nothing is known."""
_FLOAT, _INT, _SHORT = 4, 8, 4  # bytes; codes are read as short ones and used as int64
_CPU_SCORES, _DEVICE_SCORES = 2 << 20, 256 << 20  # as in `models/score_chunks.py`
_FEWEST_SCORED = 32
_PORTION = 1024  # rows of which a recomputing tower keeps activations, as in `models/towers.py`
_STATE_WIDTH = {"rowwise_adagrad": 0, "adagrad": 1, "adam": 2, "sgd": 0}  # numbers an element
_DENSE_STATE = {"adagrad": 1, "adam": 2, "sgd": 0}


@dataclass(frozen=True)
class TableShard:
    """A part of a table.

    Attributes:
        rank: Who holds it.
        rows: Its rows.
        columns: Its columns.
    """

    rank: int
    rows: int
    columns: int


Placement = Mapping[str, Sequence[TableShard]]
"""The parts of each table; a copied one has a part on every rank."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes that a rank needs at its peak.

    Attributes:
        rank: Which rank.
        tables: Its parts of the embedding tables.
        optimizer: State of both optimizers.
        towers: Weights of the towers.
        activations: What a step makes: codes, fetched rows, exchanges, activations, gradients.
        input: Corpus, what is read ahead, and where each row of a table stands in a macro-batch.
        copies: The checkpoint that is written in the background; on the first rank, at the
            end, the largest table in one piece instead, where that is more.
        process: The process itself.
    """

    rank: int
    tables: int
    optimizer: int
    towers: int
    activations: int
    input: int
    copies: int
    process: int

    @property
    def total(self) -> int:
        """Everything."""
        return sum(getattr(self, f.name) for f in fields(self) if f.name != "rank")


def estimate_rank_memory(
    model: ModelSettings,
    tables: Mapping[str, EmbeddingTableSettings],
    table_rows: Mapping[str, int],
    training: TrainingSettings,
    ranks: int,
    *,
    items: int,
    hashes: Mapping[str, int] | None = None,
    elements: Mapping[str, float] | None = None,
    file_rows: int = FILE_ROWS,
    placement: Placement | None = None,
    on_host: bool = True,
    process: Sequence[int] | None = None,
) -> list[RankMemory]:
    """Memory of every rank.

    Args:
        model: The model.
        tables: Settings of its embedding tables, by name.
        table_rows: Rows of each table, padding and buckets included.
        training: The training; batch sizes are those of all ranks together.
        ranks: Number of ranks.
        items: Items in the corpus.
        hashes: Codes of one element, by table; by default 1.
        elements: Mean elements of an example's features of kind `list` and `history`, by name, as
            far as they are known; else a list has a few, and a history is full.
        file_rows: Rows of a file of training examples.
        placement: Where the parts of the tables are; by default `place_tables`.
        on_host: Whether the ranks compute on CPUs. An accelerator's memory holds neither copies
            nor the process.
        process: Bytes that each process holds already; by default `PROCESS_BYTES`.

    Returns:
        One entry a rank, in bytes. Compare `total` with what a rank has; `memory_table` shows it.
    """
    if placement is None:
        placement = place_tables(tables, table_rows, ranks, training.table_ranks)
    load = _Load(model, tables, table_rows, training, ranks, items, hashes or {}, elements or {})
    parameters = sum(tower_parameters(t, tables, model.dim) for t in (model.user, model.item))
    dense = parameters * _DENSE_STATE[training.optimizer.dense]
    largest = max((_whole(t, table_rows[n], training) for n, t in tables.items()), default=0)
    found = []
    for rank in range(ranks):
        mine = [(tables[n], s) for n, shards in placement.items() for s in shards if s.rank == rank]
        weights = sum(s.rows * s.columns * _bytes_of_weight(t) for t, s in mine)
        state = sum(_state_bytes(training.optimizer, s.rows, s.columns) for _, s in mine)
        towers, optimizer = parameters * _FLOAT, state + dense * _FLOAT
        copies = weights + optimizer + towers
        if rank == 0:
            copies = max(copies, largest)
        found.append(
            RankMemory(
                rank=rank,
                tables=weights,
                optimizer=optimizer,
                towers=towers,
                activations=load.activations(rank, placement, parameters, on_host),
                input=load.input(file_rows),
                copies=copies if on_host else 0,
                process=(process[rank] if process else PROCESS_BYTES) if on_host else 0,
            )
        )
    return found


def memory_table(ranks: Iterable[RankMemory], limits: Sequence[int]) -> str:
    """A line for each rank, in MiB, with what is left of its limit.

    Args:
        ranks: The ranks.
        limits: Bytes that each may use.
    """
    names = [f.name for f in fields(RankMemory) if f.name != "rank"]
    head = ["rank", *names, "total", "limit", "margin"]
    lines = [head]
    for one, limit in zip(ranks, limits, strict=True):
        sizes = [*(getattr(one, n) for n in names), one.total, limit, limit - one.total]
        lines.append([str(one.rank), *(f"{size / 2**20:,.1f}" for size in sizes)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in lines
    )


def place_tables(
    tables: Mapping[str, EmbeddingTableSettings],
    table_rows: Mapping[str, int],
    ranks: int,
    table_ranks: int | None = None,
) -> dict[str, list[TableShard]]:
    """Where parts of tables are put by somebody who only looks at their size.

    TorchRec's planner may put whole tables elsewhere; sums over ranks are the same.

    Args:
        tables: Settings by name; `auto` counts as whole tables.
        table_rows: Rows by name.
        ranks: Number of ranks.
        table_ranks: Over how many of them, the first ones, tables are spread.
    """
    holders = min(table_ranks or ranks, ranks)
    held = [0] * ranks
    placed: dict[str, list[TableShard]] = {name: [] for name in tables}

    def put(name: str, rank: int, rows: int, columns: int) -> None:
        placed[name].append(TableShard(rank, rows, columns))
        held[rank] += rows * columns * _bytes_of_weight(tables[name])

    columns = column_holders(tables, holders)
    whole: list[tuple[int, str]] = []
    for name, table in tables.items():
        rows = table_rows[name]
        if table.sharding == "data_parallel":
            for rank in range(ranks):
                put(name, rank, rows, table.dim)
        elif table.sharding in ("row_wise", "table_row_wise"):
            portion = -(-rows // holders)
            for rank in range(holders):
                put(name, rank, max(0, min(portion, rows - rank * portion)), table.dim)
        elif table.sharding == "column_wise":
            for rank in columns[name]:
                put(name, rank, rows, table.part_width)
        else:
            whole.append((rows * table.dim * _bytes_of_weight(table), name))
    # The largest first, each to the rank that holds least.
    for _, name in sorted(whole, reverse=True):
        put(name, min(range(holders), key=held.__getitem__), table_rows[name], tables[name].dim)
    return placed


def column_holders(
    tables: Mapping[str, EmbeddingTableSettings], ranks: int
) -> dict[str, list[int]]:
    """The rank of each part of the tables that are cut into columns, in the order of columns.

    Every rank gets as many parts of a table as every other, or one more; where a table has fewer
    parts than there are ranks, the next table goes on behind it.
    """
    found = {}
    first = 0
    for name, table in sorted(tables.items()):
        if table.sharding != "column_wise":
            continue
        parts = table.dim // table.part_width
        used = min(parts, ranks)
        found[name] = [(first + part * used // parts) % ranks for part in range(parts)]
        first += used
    return found


def tower_parameters(
    tower: TowerSettings, tables: Mapping[str, EmbeddingTableSettings], dim: int
) -> int:
    """Parameters of a tower of vectors of width `dim`."""
    widths = [_tower_input(tower, tables), *tower.hidden, dim]
    layers = sum((below + 1) * above for below, above in pairwise(widths))
    pools = sum(
        tables[f.table].dim + (f.max_length if f.kind == "history" else 0)
        for f in tower.coded
        if f.kind != "id" and f.pooling == "attention"
    )
    return layers + pools


class _Load:
    """What a rank does in one macro-batch, in numbers of rows, codes and draws."""

    def __init__(
        self,
        model: ModelSettings,
        tables: Mapping[str, EmbeddingTableSettings],
        table_rows: Mapping[str, int],
        training: TrainingSettings,
        ranks: int,
        items: int,
        hashes: Mapping[str, int],
        elements: Mapping[str, float],
    ) -> None:
        self._model = model
        self._tables = tables
        self._rows = table_rows
        self._training = training
        self._ranks = ranks
        self._items = items
        self._hashes = hashes
        self._elements = elements
        self._micro = training.accumulate
        self._users = -(-training.batch_size // ranks)
        draws = training.batch_size + training.loss.num_negatives
        self._own = min(items, draws)
        self._columns = min(items, draws + training.loss.bank)
        if training.loss.pool == "macro_batch":
            self._columns = min(items, draws * self._micro + training.loss.bank)
        self._codes = dict.fromkeys(tables, 0.0)
        for tower, examples in (
            (model.user, self._users),
            (model.item, -(-self._own // ranks)),
        ):
            for f in tower.coded:
                self._codes[f.table] += self._micro * examples * self._codes_of(f)

    def _codes_of(self, feature: FeatureSettings) -> float:
        return self._elements_of(feature) * self._hashes.get(feature.table, 1)

    def _elements_of(self, feature: FeatureSettings) -> float:
        if feature.kind == "id":
            return 1.0
        if feature.kind in ("history", "neighbours"):
            return min(feature.max_length, self._elements.get(feature.name, math.inf))
        return self._elements.get(feature.name, LIST_ELEMENTS)

    def activations(self, rank: int, placement: Placement, parameters: int, on_host: bool) -> int:
        """Highest sum of what a step makes on a rank."""
        gradients = parameters * _FLOAT * (1 if self._ranks == 1 else 3)
        return round(
            self._encoding()
            + self._exchange(rank, placement, on_host)
            + self._towers_and_loss(on_host)
            + gradients
        )

    def _encoding(self) -> float:
        """Positions of all codes, and what finding the different ones takes for one table."""
        return _INT * (sum(self._codes.values()) + 4 * max(self._codes.values(), default=0.0))

    def _exchange(self, rank: int, placement: Placement, on_host: bool) -> float:
        """Fetched rows and their gradients, and what comes and goes between ranks."""
        unique = {n: min(float(self._rows[n]), codes) for n, codes in self._codes.items()}
        fetched = sum(unique[n] * t.dim for n, t in self._tables.items())
        if self._ranks == 1:
            return 2 * _FLOAT * fetched
        copied = [n for n, t in self._tables.items() if t.sharding == "data_parallel"]
        spread = [n for n in self._tables if n not in copied]
        width = sum(unique[n] * self._tables[n].dim for n in spread)
        answered = {
            n: sum(shard.columns for shard in placement[n] if shard.rank == rank) for n in spread
        }
        if on_host:
            # Gradients for the holders of rows, and those of the others' rows, which are then
            # added up: more than the rows themselves on their way.
            asked = sum(unique[n] * columns for n, columns in answered.items())
            exchanged = width + 2 * (self._ranks - 1) * asked
        else:
            # TorchRec brings all tables to the same number of bags, there and back.
            bags = max((unique[n] for n in spread), default=0.0)
            dims = sum(self._tables[n].dim for n in spread)
            exchanged = bags * (2 * dims + self._ranks * sum(answered.values()))
        whole = sum(2 * self._rows[n] * (self._tables[n].dim + 1) for n in copied)
        return _FLOAT * (fetched + exchanged + whole)

    def _towers_and_loss(self, on_host: bool) -> float:
        two_passes = self._training.loss.pool == "macro_batch" and self._micro > 1
        items = -(-self._own // self._ranks)
        # Several ranks keep the items' side of all pools, to exchange their vectors at once.
        pools = 1 if two_passes or self._ranks == 1 else self._micro
        towers = self._tower(self._model.user, self._users)
        towers += pools * self._tower(self._model.item, items)
        # The backward pass of a lookup makes a gradient as large as the fetched rows.
        largest = max(
            (min(self._rows[n], c) * self._tables[n].dim for n, c in self._codes.items()),
            default=0.0,
        )
        # Each pool has its own copy of the rows that it touches, and their gradient.
        touched = sum(
            min(self._rows[n], codes / self._micro) * self._tables[n].dim
            for n, codes in self._codes.items()
        )
        copies = 0.0 if two_passes or self._micro == 1 else 2 * pools * touched
        users = self._users * (self._micro if two_passes else 1)
        vectors = 4 * (users + pools * self._columns) * self._model.dim
        limit = _CPU_SCORES if on_host else _DEVICE_SCORES
        chunk = self._training.loss.chunk or max(
            _FEWEST_SCORED, limit // max(1, self._columns * _FLOAT)
        )
        scores = 3 * min(chunk, users) * self._columns
        known = sum(self._elements_of(f) for f in self._model.user.features if f.kind == "history")
        numbers = towers + 2 * largest + copies + vectors + scores
        return _FLOAT * numbers + 6 * _INT * users * (known + 2)

    def _tower(self, tower: TowerSettings, examples: int) -> float:
        """Numbers that the forward and backward pass of a micro-batch keep at a time."""
        inside = 3 * sum(tower.hidden) + 4 * self._model.dim
        kept = examples
        if self._training.checkpoint_activations:
            kept = min(examples, _PORTION)
        codes = sum(self._codes_of(f) for f in tower.coded)
        # Attention has some numbers for each element; they are counted for all features.
        width = 3 * _tower_input(tower, self._tables) + self._model.dim + 10 * codes
        return kept * inside + examples * width

    def input(self, file_rows: int) -> int:
        """Corpus, batches that are read ahead, and directories of rows."""
        training, model = self._training, self._model
        history = max(
            (self._elements_of(f) for f in model.user.features if f.kind == "history"), default=0.0
        )
        own = sum(self._codes_of(f) for f in model.user.coded if f.kind != "history")
        numbers = len(model.user.numeric)
        example = 4 + history + own + numbers
        macro = self._micro * (self._users * example + 2 * training.batch_size) * _INT
        # A file, the next one, and the shuffled rows of the one in use.
        files = 3 * file_rows * (_INT + 2 * _SHORT + (history + own) * _SHORT + numbers * _INT)
        of_item = 6 + sum(2 + self._codes_of(f) for f in model.item.coded) + len(model.item.numeric)
        directories = _SHORT * (self._items + sum(self._rows[n] for n in self._tables))
        return round(
            macro * (training.read_ahead + 1) + files + self._items * of_item * _INT + directories
        )


def _tower_input(tower: TowerSettings, tables: Mapping[str, EmbeddingTableSettings]) -> int:
    return sum(tables[f.table].dim for f in tower.coded) + len(tower.numeric)


def _bytes_of_weight(table: EmbeddingTableSettings) -> int:
    return 2 if table.dtype == "fp16" else _FLOAT


def _state_bytes(optimizer: OptimizerSettings, rows: int, columns: int) -> int:
    if optimizer.sparse == "rowwise_adagrad":
        return rows * _FLOAT
    return rows * columns * _STATE_WIDTH[optimizer.sparse] * _FLOAT


def _whole(table: EmbeddingTableSettings, rows: int, training: TrainingSettings) -> int:
    """A table and its optimizer state in one piece."""
    return rows * table.dim * _bytes_of_weight(table) + _state_bytes(
        training.optimizer, rows, table.dim
    )
