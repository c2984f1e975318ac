"""A training that continues from an earlier model, whose vocabulary and features may have changed.

Rows of the tables move as `models/row_moves.py` says. The towers' parameters are taken over by
feature: the first layer keeps the columns of every feature that stays and starts with zeros for a
new one, so the model computes at first what it computed before. Optimizer state moves along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from models.bundle import read_bundle
from models.config import (
    EmbeddingTableSettings,
    ModelSettings,
    TowerSettings,
    TrainJob,
    WarmStart,
)
from models.errors import WarmStartError
from models.optimizer_state import TOWERS as TOWER_STATE
from models.optimizer_state import read_state_file
from models.row_moves import RowMoves
from models.table_parts import TablePart
from models.weights import TOWERS, TrainedModel


def differences(
    old: TrainedModel, model: ModelSettings, tables: Mapping[str, EmbeddingTableSettings]
) -> tuple[dict[str, list[str]], list[str]]:
    """What keeps tables, and the towers, from being continued.

    Args:
        old: The earlier model.
        model: The new one.
        tables: Its tables.

    Returns:
        Reasons by table, and reasons of the towers; empty where nothing is in the way.
    """
    reasons: dict[str, list[str]] = {}
    for name, table in tables.items():
        before = old.tables.get(name)
        if before is None:
            continue
        found = [
            f"{key} was {getattr(before, key)} and is {getattr(table, key)}"
            for key in ("dim", "dtype")
            if getattr(before, key) != getattr(table, key)
        ]
        if found:
            reasons[name] = found
    towers = []
    if old.model.dim != model.dim:
        towers.append(f"model.dim was {old.model.dim} and is {model.dim}")
    for side in ("user", "item"):
        was, now = getattr(old.model, side).hidden, getattr(model, side).hidden
        if was != now:
            towers.append(f"model.{side}.hidden was {list(was)} and is {list(now)}")
    return reasons, towers


class EarlierModel:
    """Reads the model that a training continues from.

    Args:
        start: Where it is and what of it is used.
        job: The new training.

    Raises:
        BundleError: The bundle or the state is incomplete or damaged.
        WarmStartError: The earlier model was not trained, or cannot be continued by this job.
    """

    def __init__(self, start: WarmStart, job: TrainJob) -> None:
        self._start = start
        self._job = job
        self._folder = Path(start.bundle)
        trained = read_bundle(self._folder).trained
        if trained is None or trained.kind != "two_tower":
            raise WarmStartError(f"{start.bundle} is no trained two-tower model")
        self._old = trained
        tables, towers = differences(trained, job.model, job.tables)
        blocked = [f"table {n}: {r}" for n in tables if n in start.moves for r in tables[n]]
        if not start.fresh_towers:
            blocked += towers
        if blocked:
            raise WarmStartError(f"{start.bundle} cannot be continued: {'; '.join(blocked)}")
        self._state = None
        if start.state is not None:
            content = read_state_file(Path(start.state))
            self._optimizer = content.optimizer
            self._state = Path(start.state)

    @torch.no_grad()
    def fill_tables(self, parts: Sequence[TablePart]) -> None:
        """Overwrites what this rank holds of the tables, state included, where rows have a past."""
        with ExitStack() as stack:
            for part in parts:
                if part.table not in self._start.moves:
                    continue
                moves = self._moves(part.table)
                path = self._folder / f"tables/{part.table}.safetensors"
                weight = _mapped(stack, path)["weight"]
                columns = slice(part.first_column, part.first_column + part.weight.shape[1])
                moves.move_weights(part.weight, part.first_row, weight[:, columns])
                self._fill_state(stack, part, moves, columns)

    def _fill_state(
        self, stack: ExitStack, part: TablePart, moves: RowMoves, columns: slice
    ) -> None:
        if self._state is None or self._optimizer.sparse != self._job.training.optimizer.sparse:
            return
        found = _mapped(stack, self._state / f"tables/{part.table}.safetensors")
        for name, target in part.state.items():
            if name not in found:
                continue
            source = found[name]
            if target.dim() == 0:
                target.copy_(source)
            elif source.dim() == 2:
                moves.move_state(target, part.first_row, source[:, columns])
            else:
                moves.move_state(target, part.first_row, source)

    def _moves(self, table: str) -> RowMoves:
        return RowMoves.from_parquet(
            self._start.moves[table], self._job.table_rows[table], self._old.table_rows[table]
        )

    def tower_weights(self, fresh: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The towers' parameters to start with.

        Args:
            fresh: Parameters of a new model, by name.
        """
        if self._start.fresh_towers:
            return dict(fresh)
        old = load_file(self._folder / TOWERS)
        return {name: self._carried(name, old.get(name), w) for name, w in fresh.items()}

    def tower_state(self, fresh: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Optimizer state of the towers to start with.

        Args:
            fresh: State before the first step, by `<parameter>/<name>`; numbers have no
                dimension.
        """
        if (
            self._start.fresh_towers
            or self._state is None
            or self._optimizer.dense != self._job.training.optimizer.dense
        ):
            return dict(fresh)
        old = load_file(self._state / TOWER_STATE)
        result = {}
        for key, value in fresh.items():
            before = old.get(key)
            if value.dim() == 0:
                result[key] = value if before is None else before.to(value)
            else:
                result[key] = self._carried(key.rpartition("/")[0], before, value)
        return result

    def _carried(self, name: str, old: Tensor | None, fresh: Tensor) -> Tensor:
        """A parameter, or its state, from the earlier one; `fresh` is what a new model has."""
        if old is None:
            return fresh
        side, _, rest = name.partition(".")
        if rest == "mlp.0.weight":
            return self._carried_columns(side, old, fresh)
        if rest.startswith("pools."):
            feature = rest.split(".")[1]
            if not self._continues(side, feature):
                return fresh
            if rest.endswith(".recency"):
                # Distances that no history reached before have the bias of a new model.
                longer, shared = fresh.clone(), min(len(old), len(fresh))
                longer[:shared] = old[:shared]
                return longer
        return old.to(fresh)

    def _carried_columns(self, side: str, old: Tensor, fresh: Tensor) -> Tensor:
        before = _columns(getattr(self._old.model, side), self._old.tables)
        now = _columns(getattr(self._job.model, side), self._job.tables)
        # Columns of new features start with zeros.
        result = torch.zeros_like(fresh)
        for feature, columns in now.items():
            if feature[1] in self._start.fresh_tables:
                result[:, columns] = fresh[:, columns]
            elif feature in before:
                result[:, columns] = old[:, before[feature]].to(result)
        return result

    def _continues(self, side: str, feature: str) -> bool:
        """Whether a feature of this name had the same table, which is continued, before."""
        before = _columns(getattr(self._old.model, side), self._old.tables)
        now = _columns(getattr(self._job.model, side), self._job.tables)
        return any(
            key[0] == feature and key in before and key[1] not in self._start.fresh_tables
            for key in now
        )


def _columns(
    tower: TowerSettings, tables: Mapping[str, EmbeddingTableSettings]
) -> dict[tuple[str, str], slice]:
    """Columns of the first layer by feature, which its name and table tell apart."""
    found, first = {}, 0
    for feature in (*tower.coded, *tower.numeric):
        width = tables[feature.table].dim if feature.table else 1
        found[feature.name, feature.table] = slice(first, first + width)
        first += width
    return found


def _mapped(stack: ExitStack, path: Path) -> dict[str, Tensor]:
    """Tensors of a file, read from the disk only where they are looked at."""
    opened: AbstractContextManager[Any] = safe_open(path, framework="pt")
    file = stack.enter_context(opened)
    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
