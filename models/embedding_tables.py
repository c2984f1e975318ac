"""All embedding tables of a model, wherever their rows live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models import collectives
from models.config import EmbeddingTableSettings, OptimizerSettings
from models.memory_estimate import Placement, TableShard
from models.replicated_tables import ReplicatedTables
from models.step_load import StepLoad
from models.table_parts import TablePart, one_number_a_row, whole_state

if TYPE_CHECKING:
    from models.sharded_tables import ShardedTables


@dataclass(frozen=True)
class FetchedRows:
    """Rows that a macro-batch works on.

    Attributes:
        unique: Row numbers by table, without repetition.
        rows: The rows `[len(unique), dim]`, as leaves that collect gradients.
        attached: The same rows of the sharded tables, in the graph that updates them.
    """

    unique: Mapping[str, Tensor]
    rows: Mapping[str, Tensor]
    attached: Mapping[str, Tensor]


class EmbeddingTables:
    """Fetches rows and updates them; see `ShardedTables` and `ReplicatedTables`.

    Args:
        tables: Settings by name.
        rows: Rows by table.
        optimizer: Which optimizer, learning rate and eps.
        seed: Seed of the initial rows.
        device: This rank's device.
        ranks: Over how many ranks, the first ones, they are spread; by default over all.
        communication: Type in which rows and gradients travel between ranks.
        memory: Bytes that tables may fill on each rank; by default the planner guesses.
        check: Called, on every rank, with where the parts will be, before memory is taken.

    Raises:
        ModelError: The tables cannot be spread over the ranks as the settings want it.
    """

    def __init__(
        self,
        tables: Mapping[str, EmbeddingTableSettings],
        rows: Mapping[str, int],
        optimizer: OptimizerSettings,
        seed: int,
        device: torch.device,
        ranks: int | None = None,
        communication: str = "fp32",
        memory: int | None = None,
        check: Callable[[Placement], None] = lambda _: None,
    ) -> None:
        copied = {name: t for name, t in tables.items() if t.sharding == "data_parallel"}
        spread = {name: t for name, t in tables.items() if name not in copied}
        self.rows = dict(rows)
        """Rows of each table."""
        self.names = sorted(tables)
        """Names of all tables."""
        self._dims = {name: table.dim for name, table in tables.items()}
        self.no_rows = torch.zeros(0, dtype=torch.int64, device=device)
        """Row numbers of a table that is not asked for anything."""
        copies = {
            name: [TableShard(rank, rows[name], t.dim) for rank in range(collectives.world_size())]
            for name, t in copied.items()
        }
        self._sharded: ShardedTables | None = None
        if spread:
            # Copied tables do without TorchRec and FBGEMM, which not every machine has.
            from models.sharded_tables import ShardedTables

            self._sharded = ShardedTables(
                spread,
                rows,
                optimizer,
                seed,
                device,
                ranks,
                communication,
                memory,
                lambda parts: check({**copies, **parts}),
            )
        else:
            check(copies)
        self._replicated = ReplicatedTables(copied, rows, optimizer, seed, device)
        self.sharding = dict.fromkeys(copied, "data_parallel")
        """How each table is spread."""
        if self._sharded is not None:
            self.sharding |= self._sharded.sharding

    @property
    def exchanged(self) -> Sequence[str]:
        """Tables whose rows travel between ranks, in the order of `StepLoad.bytes`."""
        return () if self._sharded is None else self._sharded.exchanged

    @property
    def load(self) -> StepLoad | None:
        """What the last fetch asked of each rank; None where nothing is exchanged."""
        return None if self._sharded is None else self._sharded.load

    def fetch(self, unique: Mapping[str, Tensor]) -> FetchedRows:
        """Rows of every table; a collective.

        Args:
            unique: Row numbers by table, without repetition; every table, on every rank.
        """
        attached = {} if self._sharded is None else self._sharded.fetch(unique)
        found = {**self._replicated.fetch(unique), **attached}
        rows = {name: found[name].detach().requires_grad_() for name in self.names}
        return FetchedRows(unique, rows, attached)

    def gradients(self, fetched: FetchedRows) -> dict[str, Tensor]:
        """Gradients that the fetched rows collected, by table; the padding row's is zero."""
        return {name: _gradient(rows, fetched.unique[name]) for name, rows in fetched.rows.items()}

    def update(self, fetched: FetchedRows, gradients: Mapping[str, Tensor]) -> None:
        """One optimizer step; a collective.

        Args:
            fetched: The rows.
            gradients: Gradient of each row, by table.
        """
        self._replicated.update(fetched.unique, gradients)
        if self._sharded is not None:
            self._sharded.update(fetched.attached, gradients)

    def uncount_fetch(self) -> None:
        """Takes back that the last fetch counts as a step, because no update follows it."""
        if self._sharded is not None:
            self._sharded.uncount_fetch()

    def set_rate(self, factor: float) -> None:
        """From now on learns at `factor` times the learning rate."""
        self._replicated.set_rate(factor)
        if self._sharded is not None:
            self._sharded.set_rate(factor)

    def decay_accumulators(self, factor: float) -> None:
        """Multiplies Adagrad's accumulators by a factor."""
        self._replicated.decay_accumulators(factor)
        if self._sharded is not None:
            self._sharded.decay_accumulators(factor)

    def local_weights(self) -> list[Tensor]:
        """What this rank holds of the tables."""
        spread = [] if self._sharded is None else self._sharded.local_weights()
        return [*self._replicated.weights.values(), *spread]

    def local_state(self) -> list[Tensor]:
        """What this rank holds of the tables' optimizer state."""
        copied = [t for o in self._replicated.optimizers.values() for t in o.state.values()]
        return copied + ([] if self._sharded is None else self._sharded.local_state())

    def parts(self) -> list[TablePart]:
        """What this rank holds of each table in one piece; a copy on every rank counts as one."""
        spread = [] if self._sharded is None else [*self._sharded.parts()]
        return [*self._replicated.parts(), *spread]

    def full_state(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Each table's name and whole optimizer state on the first rank (empty elsewhere).

        A collective: every rank must consume it.
        """
        copied = {part.table: part for part in self._replicated.parts()}
        spread = [] if self._sharded is None else [*self._sharded.parts()]
        for name in self.names:
            if name in copied:
                yield name, {k: one_number_a_row(v) for k, v in copied[name].state.items()}
            else:
                mine = [part for part in spread if part.table == name]
                yield name, whole_state(mine, self.rows[name], self._dims[name])

    def checkpoint_state(self) -> dict[str, Any]:
        """Weights and optimizer state by flat names, for `Checkpoints`."""
        state: dict[str, Any] = {}
        for name, weight in self._replicated.weights.items():
            state[f"replicated.{name}.weight"] = weight
            for key, value in self._replicated.optimizers[name].state.items():
                state[f"replicated.{name}.{key}"] = value
        if self._sharded is not None:
            state |= self._sharded.checkpoint_state()
        return state

    def full_tables(self) -> Iterator[tuple[str, Tensor]]:
        """Each table's name and whole weight `[rows, dim]` on the first rank (empty elsewhere).

        A collective: every rank must consume it.
        """
        yield from self._replicated.weights.items()
        if self._sharded is not None:
            yield from self._sharded.full_tables()


def _gradient(rows: Tensor, unique: Tensor) -> Tensor:
    gradient = torch.zeros_like(rows) if rows.grad is None else rows.grad
    if len(unique):
        gradient[unique == 0] = 0.0
    return gradient
