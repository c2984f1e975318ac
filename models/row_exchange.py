"""Rows of spread tables, read and moved where TorchRec keeps them, one exchange for each direction.

A rank asks each other rank for the rows that it lacks, all tables in one message, and later sends
their gradients back in one message. Every row travels once for each macro-batch and rank, in its
own width and the table's own type; rows that a rank holds itself do not travel. TorchRec's pooled
exchange would pad every table to the longest one, because its bags are of one here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from models import collectives
from models.config import OptimizerSettings
from models.distinct import Distinct
from models.row_optimizers import ACCUMULATOR, RowOptimizer, move_rows, row_optimizer
from models.table_parts import TablePart

_SMALL_NUMBERS = 2**31


@dataclass(frozen=True, order=True)
class Piece:
    """Where a rectangle of a table lies.

    Attributes:
        rank: Who holds it.
        table: Name of the table.
        first_row: First of its rows in the table.
        first_column: Likewise.
        rows: How many.
        columns: How many.
    """

    rank: int
    table: str
    first_row: int
    first_column: int
    rows: int
    columns: int


@dataclass(frozen=True)
class _Held:
    """A piece of this rank."""

    weight: Tensor
    optimizer: RowOptimizer
    distinct: Distinct | None


@dataclass(frozen=True)
class _Asked:
    """Rows of a piece that this rank wants: numbers in the piece and, unless all, their places."""

    ids: Tensor
    places: Tensor | None


@dataclass(frozen=True)
class _Open:
    """A fetch that an update may follow.

    Attributes:
        asked: What this rank wanted, by piece.
        wanted: What the ranks wanted of each of this rank's pieces, by rank.
    """

    asked: Mapping[Piece, _Asked]
    wanted: Mapping[Piece, Sequence[Tensor]]


class RowExchange:
    """Fetches rows from the ranks that hold them, and moves them by the sum of all gradients.

    Args:
        pieces: All pieces of all tables, on every rank the same.
        parts: This rank's pieces, with their optimizer state.
        types: Storage type of each table.
        optimizer: Which optimizer, and its eps.
        rows_as: Type in which rows travel; by default that of their table.
        gradients_as: Type in which gradients travel.
    """

    def __init__(
        self,
        pieces: Iterable[Piece],
        parts: Iterable[TablePart],
        types: Mapping[str, torch.dtype],
        optimizer: OptimizerSettings,
        rows_as: torch.dtype | None = None,
        gradients_as: torch.dtype = torch.float32,
    ) -> None:
        self._rank, world = collectives.rank(), collectives.world_size()
        ordered = sorted(pieces)
        self._of_rank = [[p for p in ordered if p.rank == rank] for rank in range(world)]
        self._types = {n: rows_as or t for n, t in types.items()}
        self._gradients_as = gradients_as
        self._of_table: dict[str, list[Piece]] = {}
        for piece in ordered:
            self._of_table.setdefault(piece.table, []).append(piece)
        self._dims = {
            name: max(p.first_column + p.columns for p in some)
            for name, some in self._of_table.items()
        }
        self._id_type = (
            torch.int32 if all(p.rows < _SMALL_NUMBERS for p in ordered) else torch.int64
        )
        by_place = {(p.table, p.first_row, p.first_column): p for p in parts}
        self._held = {
            piece: self._hold(by_place[piece.table, piece.first_row, piece.first_column], optimizer)
            for piece in self._of_rank[self._rank]
        }
        self._open: _Open | None = None

    @torch.no_grad()
    def fetch(self, unique: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of every table; a collective.

        Args:
            unique: Row numbers by table, without repetition; every table, on every rank.

        Returns:
            Rows by table, float32 `[len(unique), dim]`.
        """
        asked = {
            piece: rows
            for name, pieces in self._of_table.items()
            for piece, rows in _asked_of(pieces, unique[name])
        }
        wanted = self._exchange_ids(asked)
        self._open = _Open(asked, wanted)
        rows = {name: _Rows(len(unique[name]), dim) for name, dim in self._dims.items()}
        arrived = self._exchange_rows(asked, wanted)
        for piece, some in asked.items():
            if piece.rank == self._rank:
                values = self._held[piece].weight.index_select(0, some.ids)
            else:
                values = arrived[piece]
            rows[piece.table].put(piece, some.places, values)
        return {name: some.whole for name, some in rows.items()}

    @torch.no_grad()
    def update(self, gradients: Mapping[str, Tensor], rate: float) -> None:
        """One optimizer step on all rows of the last fetch of all ranks; a collective.

        Args:
            gradients: Gradient of each row that the last fetch returned, by table.
            rate: Learning rate.
        """
        assert self._open is not None, "an update follows a fetch"
        done, self._open = self._open, None
        mine = {
            piece: _part(gradients[piece.table], piece, some.places)
            for piece, some in done.asked.items()
        }
        arrived = self._exchange_gradients(mine, done)
        for piece, held in self._held.items():
            by_rank = [
                mine[piece] if rank == self._rank else arrived[rank, piece]
                for rank in range(len(self._of_rank))
            ]
            rows, gradient = _merged(done.wanted[piece], by_rank, held.distinct)
            move_rows(held.weight, rows, held.optimizer.step(rows, gradient), rate)

    def _hold(self, part: TablePart, optimizer: OptimizerSettings) -> _Held:
        accumulator = part.state.get(ACCUMULATOR)
        several = len(self._of_rank) > 1
        return _Held(
            part.weight,
            row_optimizer(optimizer, part.weight, accumulator),
            Distinct(len(part.weight), part.weight.device) if several else None,
        )

    def _others(self) -> Iterator[tuple[int, list[Piece]]]:
        for rank, pieces in enumerate(self._of_rank):
            yield rank, [] if rank == self._rank else pieces

    def _exchange_ids(self, asked: Mapping[Piece, _Asked]) -> dict[Piece, list[Tensor]]:
        """What the ranks want of each of this rank's pieces, by rank."""
        own = self._of_rank[self._rank]
        wanted = {piece: [asked[piece].ids] * len(self._of_rank) for piece in own}
        if len(self._of_rank) == 1:
            return wanted
        targets = list(self._others())
        device = next(iter(asked.values())).ids.device
        counts = [[asked[p].ids.numel() for p in pieces] for _, pieces in targets]
        sources = [0 if rank == self._rank else len(own) for rank, _ in targets]
        sizes = collectives.exchange(
            torch.tensor([n for some in counts for n in some], dtype=torch.int64, device=device),
            [len(some) for some in counts],
            sources,
        ).tolist()
        from_rank = [[sizes.pop(0) for _ in range(count)] for count in sources]
        ids = [asked[p].ids.to(self._id_type) for _, pieces in targets for p in pieces]
        arrived = collectives.exchange(
            torch.cat(ids) if ids else torch.zeros(0, dtype=self._id_type, device=device),
            [sum(some) for some in counts],
            [sum(some) for some in from_rank],
        )
        parts = iter(torch.split(arrived, [n for some in from_rank for n in some]))
        for rank, _ in targets:
            if rank != self._rank:
                for piece in own:
                    wanted[piece][rank] = next(parts).long()
        return wanted

    def _exchange_rows(
        self, asked: Mapping[Piece, _Asked], wanted: Mapping[Piece, Sequence[Tensor]]
    ) -> dict[Piece, Tensor]:
        """Rows of the other ranks' pieces."""
        if len(self._of_rank) == 1:
            return {}
        own = self._of_rank[self._rank]
        answers = [
            [(p, wanted[p][rank]) for p in own] if rank != self._rank else []
            for rank in range(len(self._of_rank))
        ]
        device = next(iter(asked.values())).ids.device
        sent = [[self._shape(p, ids.numel()) for p, ids in some] for some in answers]
        due = [
            [self._shape(p, asked[p].ids.numel()) for p in pieces] for _, pieces in self._others()
        ]
        message = _Message(sent, device)
        for (piece, ids), place in zip(
            (answer for some in answers for answer in some), message.places(), strict=True
        ):
            weight = self._held[piece].weight
            if weight.dtype == place.dtype:
                torch.index_select(weight, 0, ids, out=place)
            else:
                place.copy_(weight.index_select(0, ids))
        others = [p for _, pieces in self._others() for p in pieces]
        return dict(zip(others, message.exchange(due), strict=True))

    def _exchange_gradients(
        self, mine: Mapping[Piece, Tensor], done: _Open
    ) -> dict[tuple[int, Piece], Tensor]:
        """Gradients of this rank's pieces from the other ranks."""
        if len(self._of_rank) == 1:
            return {}
        own, dtype = self._of_rank[self._rank], self._gradients_as
        targets = [pieces for _, pieces in self._others()]
        sent = [[(tuple(mine[p].shape), dtype) for p in pieces] for pieces in targets]
        sources = [
            [(rank, p) for p in own] if rank != self._rank else []
            for rank in range(len(self._of_rank))
        ]
        due = [
            [((done.wanted[p][rank].numel(), p.columns), dtype) for rank, p in some]
            for some in sources
        ]
        device = next(iter(mine.values())).device
        message = _Message(sent, device)
        for piece, place in zip(
            (p for some in targets for p in some), message.places(), strict=True
        ):
            place.copy_(mine[piece])
        arrived = message.exchange(due)
        places = (place for some in sources for place in some)
        return {place: x.float() for place, x in zip(places, arrived, strict=True)}

    def _shape(self, piece: Piece, rows: int) -> tuple[tuple[int, int], torch.dtype]:
        return (rows, piece.columns), self._types[piece.table]


_Shapes = Sequence[Sequence[tuple[tuple[int, ...], torch.dtype]]]


class _Message:
    """Tensors of any types for every rank, in one exchange of bytes.

    Widths of tables are multiples of 4, so that every tensor begins where its type may.

    Args:
        shapes: Shapes and types of the tensors for each rank.
        device: Where they are.
    """

    def __init__(self, shapes: _Shapes, device: torch.device) -> None:
        self._shapes = shapes
        self._bytes = torch.empty(sum(_sizes(shapes)), dtype=torch.uint8, device=device)

    def places(self) -> list[Tensor]:
        """The tensors, rank by rank, to be written."""
        return _views(self._bytes, self._shapes)

    def exchange(self, due: _Shapes) -> list[Tensor]:
        """Sends the tensors; returns those of the ranks, of the shapes and types that are due."""
        arrived = collectives.exchange(self._bytes, _sizes(self._shapes), _sizes(due))
        return _views(arrived, due)


def _sizes(shapes: _Shapes) -> list[int]:
    return [sum(prod(shape) * dtype.itemsize for shape, dtype in some) for some in shapes]


def _views(data: Tensor, shapes: _Shapes) -> list[Tensor]:
    flat = [one for some in shapes for one in some]
    parts = torch.split(data, [prod(shape) * dtype.itemsize for shape, dtype in flat])
    return [
        part.view(dtype).view(shape) if part.numel() else data.new_empty(shape, dtype=dtype)
        for part, (shape, dtype) in zip(parts, flat, strict=True)
    ]


class _Rows:
    """Rows of a table, put together from its pieces."""

    def __init__(self, count: int, dim: int) -> None:
        self._shape = (count, dim)
        self._whole: Tensor | None = None

    @property
    def whole(self) -> Tensor:
        """All rows, float32."""
        assert self._whole is not None
        return self._whole

    def put(self, piece: Piece, places: Tensor | None, values: Tensor) -> None:
        if values.shape == self._shape and places is None:
            self._whole = values.float()
            return
        if self._whole is None:
            self._whole = torch.empty(self._shape, device=values.device)
        columns = slice(piece.first_column, piece.first_column + piece.columns)
        if places is None:
            self._whole[:, columns] = values
        else:
            self._whole[:, columns].index_copy_(0, places, values.float())


def _asked_of(pieces: Sequence[Piece], ids: Tensor) -> Iterator[tuple[Piece, _Asked]]:
    """Which rows are wanted of each piece of a table."""
    starts = sorted({p.first_row for p in pieces})
    if len(starts) == 1:
        for piece in pieces:
            yield piece, _Asked(ids, None)
        return
    borders = torch.tensor(starts[1:], dtype=ids.dtype, device=ids.device)
    owner = torch.bucketize(ids, borders, right=True)
    counts = torch.bincount(owner, minlength=len(starts)).tolist()
    order = torch.argsort(owner, stable=True)
    of_start = dict(zip(starts, torch.split(order, counts), strict=True))
    for piece in pieces:
        places = of_start[piece.first_row]
        yield piece, _Asked(ids.index_select(0, places) - piece.first_row, places)


def _part(gradient: Tensor, piece: Piece, places: Tensor | None) -> Tensor:
    """Gradient of a piece's rows and columns."""
    part = gradient[:, piece.first_column : piece.first_column + piece.columns]
    return part if places is None else part.index_select(0, places)


def _merged(
    ids: Sequence[Tensor], gradients: Sequence[Tensor], distinct: Distinct | None
) -> tuple[Tensor, Tensor]:
    """Different rows and the sum of their gradients, added up in the order of the ranks."""
    given = [n for n, some in enumerate(ids) if some.numel()]
    if distinct is None or len(given) < 2:
        only = given[0] if given else 0
        return ids[only], gradients[only]
    rows, places = distinct(torch.cat([ids[n] for n in given]))
    total = gradients[given[0]].new_zeros(len(rows), gradients[given[0]].shape[1])
    for n, some in zip(given, torch.split(places, [ids[n].numel() for n in given]), strict=True):
        total.index_add_(0, some, gradients[n])
    return rows, total
