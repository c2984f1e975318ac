"""Protects the exchange of rows: whatever way tables are cut and spread, every rank gets the rows
that it asks for, and a row moves once by the sum of all ranks' gradients.

Ranks are threads here that hand each other their tensors; `test_accumulation.py` has real ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from models import collectives
from models.config import OptimizerSettings
from models.row_exchange import Piece, RowExchange
from models.row_optimizers import ACCUMULATOR
from models.table_parts import TablePart

ROWS, DIMS = {"a": 40, "b": 7}, {"a": 12, "b": 8}
RATE, EPS = 0.3, 1e-3


class _Threads:
    """A world of threads."""

    def __init__(self, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ranks = ranks
        self._here = threading.local()
        self._barrier = threading.Barrier(ranks, timeout=20)
        self._parcels: dict[tuple[int, int], Tensor] = {}
        self.sent = 0
        monkeypatch.setattr(collectives, "world_size", lambda: ranks)
        monkeypatch.setattr(collectives, "rank", lambda: self._here.rank)
        monkeypatch.setattr(collectives, "exchange", self._exchange)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        def of_rank(rank: int) -> Any:
            self._here.rank = rank
            try:
                return work(rank)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self._ranks) as pool:
            return list(pool.map(of_rank, range(self._ranks)))

    def _exchange(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        rank = self._here.rank
        for target, part in enumerate(torch.split(x, sent)):
            self._parcels[rank, target] = part
        self._barrier.wait()
        arrived = [self._parcels[source, rank] for source in range(self._ranks)]
        assert [len(part) for part in arrived] == received
        result = torch.cat(arrived)
        self._barrier.wait()
        return result


def _pieces(way: str, ranks: int) -> list[Piece]:
    found = []
    for number, (name, rows) in enumerate(ROWS.items()):
        dim = DIMS[name]
        if way == "table_wise":
            found.append(Piece(number % ranks, name, 0, 0, rows, dim))
        elif way == "row_wise":
            height = -(-rows // ranks)
            starts = [(rank, min(rank * height, rows)) for rank in range(ranks)]
            found += [
                Piece(rank, name, start, 0, min(height, rows - start), dim)
                for rank, start in starts
                if start < rows
            ]
        elif way == "column_wise":
            # More parts than ranks, and several of them on the first rank.
            found += [
                Piece((part // 2) % ranks, name, 0, 4 * part, rows, 4) for part in range(dim // 4)
            ]
        else:
            top = rows // 3
            found += [
                Piece(0, name, 0, 0, top, 4),
                Piece(1 % ranks, name, 0, 4, top, dim - 4),
                Piece(ranks - 1, name, top, 0, rows - top, dim),
            ]
    return found


def _reference(
    whole: dict[str, Tensor],
    asked: list[dict[str, Tensor]],
    gradients: list[dict[str, Tensor]],
    pieces: list[Piece],
    sparse: str,
    steps: int,
) -> dict[str, Tensor]:
    """Row by row in float64: a sum over ranks, then the optimizer of each piece."""
    weights = {name: weight.double().clone() for name, weight in whole.items()}
    sums: dict[tuple[Piece, int], Any] = {}
    for step in range(steps):
        for piece in pieces:
            columns = slice(piece.first_column, piece.first_column + piece.columns)
            total: dict[int, Tensor] = {}
            for ids, some in zip(asked, gradients, strict=True):
                for place, row in enumerate(ids[piece.table].tolist()):
                    if piece.first_row <= row < piece.first_row + piece.rows:
                        part = some[piece.table][place, columns].double() * (step + 1)
                        total[row] = total.get(row, 0) + part
            for row, gradient in total.items():
                move = gradient
                if sparse != "sgd":
                    square = gradient.square()
                    square = square.mean() if sparse == "rowwise_adagrad" else square
                    sums[piece, row] = sums.get((piece, row), 0) + square
                    move = gradient / (sums[piece, row].sqrt() + EPS)
                weights[piece.table][row, columns] -= RATE * move
    return weights


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("way", ["table_wise", "row_wise", "column_wise", "mixed"])
@pytest.mark.parametrize("sparse", ["sgd", "adagrad", "rowwise_adagrad"])
def test_every_way_equals_row_by_row(
    monkeypatch: pytest.MonkeyPatch, ranks: int, way: str, sparse: str
) -> None:
    generator = torch.Generator().manual_seed(ranks)
    whole = {n: torch.randn(ROWS[n], DIMS[n], generator=generator) for n in ROWS}
    given = {name: weight.clone() for name, weight in whole.items()}
    pieces = _pieces(way, ranks)
    # The last rank wants nothing of one table; others share rows.
    asked = [
        {
            "a": torch.randperm(40, generator=generator)[:17],
            "b": torch.randperm(7, generator=generator)[: 4 if rank == 0 else 0],
        }
        for rank in range(ranks)
    ]
    gradients = [
        {n: torch.randn(len(ids), DIMS[n], generator=generator) for n, ids in some.items()}
        for some in asked
    ]
    held = {
        piece: TablePart(
            piece.table,
            _window(whole[piece.table], piece).clone(),
            piece.first_row,
            piece.first_column,
            _state(piece, sparse),
        )
        for piece in pieces
    }
    world = _Threads(ranks, monkeypatch)

    def work(rank: int) -> list[dict[str, Tensor]]:
        exchange = RowExchange(
            pieces,
            [part for piece, part in held.items() if piece.rank == rank],
            dict.fromkeys(ROWS, torch.float32),
            OptimizerSettings(sparse=sparse, eps=EPS),  # type: ignore[arg-type]
        )
        fetched = []
        for step in range(2):
            fetched.append(exchange.fetch(asked[rank]))
            scaled = {n: g * (step + 1) for n, g in gradients[rank].items()}
            exchange.update(scaled, RATE)
        return fetched

    fetched = world.run(work)
    for rank, (first, _) in enumerate(fetched):
        for name, ids in asked[rank].items():
            assert torch.equal(first[name], given[name][ids])
    for step in (1, 2):
        expected = _reference(given, asked, gradients, pieces, sparse, step)
        if step == 1:
            for rank, (_, second) in enumerate(fetched):
                for name, ids in asked[rank].items():
                    _close(second[name], expected[name][ids])
            continue
        for piece, part in held.items():
            _close(part.weight, _window(expected[piece.table], piece))


@pytest.mark.parametrize("ranks", [1, 2])
def test_short_types_travel_as_they_are_stored(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """A table of float16 beside one of float32: rows arrive exactly, and sums stay in float32."""
    types = {"a": torch.float16, "b": torch.float32}
    whole = {n: torch.randn(ROWS[n], DIMS[n]).to(types[n]) for n in ROWS}
    pieces = _pieces("row_wise", ranks)
    asked = {"a": torch.arange(39, -1, -1), "b": torch.tensor([6, 0, 3])}
    world = _Threads(ranks, monkeypatch)

    def work(rank: int) -> dict[str, Tensor]:
        parts = [
            TablePart(p.table, _window(whole[p.table], p), p.first_row, p.first_column, {})
            for p in pieces
            if p.rank == rank
        ]
        exchange = RowExchange(pieces, parts, types, OptimizerSettings(sparse="sgd"))
        rows = exchange.fetch(asked)
        exchange.update({n: torch.full_like(x, 0.25) for n, x in rows.items()}, 1.0)
        return rows

    before = {name: weight.clone() for name, weight in whole.items()}
    for rows in world.run(work):
        for name, ids in asked.items():
            assert rows[name].dtype == torch.float32
            assert torch.equal(rows[name], before[name][ids].float())
    for name, ids in asked.items():
        moved = (before[name][ids].float() - 0.25 * ranks).to(types[name])
        assert torch.equal(whole[name][ids], moved)


def test_an_update_belongs_to_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _Threads(1, monkeypatch)
    pieces = _pieces("table_wise", 1)
    parts = [TablePart(p.table, torch.zeros(p.rows, p.columns), 0, 0, {}) for p in pieces]

    def work(_: int) -> None:
        exchange = RowExchange(
            pieces, parts, dict.fromkeys(ROWS, torch.float32), OptimizerSettings(sparse="sgd")
        )
        rows = exchange.fetch({name: torch.arange(2) for name in ROWS})
        exchange.update(rows, RATE)
        with pytest.raises(AssertionError, match="follows a fetch"):
            exchange.update(rows, RATE)

    world.run(work)


def _window(whole: Tensor, piece: Piece) -> Tensor:
    return whole[
        piece.first_row : piece.first_row + piece.rows,
        piece.first_column : piece.first_column + piece.columns,
    ]


def _state(piece: Piece, sparse: str) -> dict[str, Tensor]:
    if sparse == "sgd":
        return {}
    width = 1 if sparse == "rowwise_adagrad" else piece.columns
    return {ACCUMULATOR: torch.zeros(piece.rows, width)}


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
