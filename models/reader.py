"""Streams shards of training examples as macro-batches, in the background.

The sequence of macro-batches is a function of the files and the seed alone: in every epoch the
shards are put in a new order, the rows of each shard are shuffled, and the stream is cut into
micro-batches across the borders of the shards. Each rank takes its share of every micro-batch,
so all ranks take the same number of steps whatever the number of rows, and a run that resumes
on another number of ranks continues with the same examples. No row is lost or repeated: the
last micro-batch and the last macro-batch of an epoch may be short.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from models.batch import Batch, has_history, integers, user_columns
from models.collectives import share
from models.config import TrainJob
from models.corpus import FULL_USER_TABLE
from models.errors import ExamplesError
from models.row_selection import RowSelection
from models.storage import parquet_rows, read_parquet

_ANY = 1 << 63
_POOL_COLUMNS = ["item", "user", "weight"]
_FOOTERS_AT_ONCE = 16  # an object store answers slowly, but many at a time


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch as a rank sees it.

    Attributes:
        items: Corpus indices of the whole micro-batch, int64 `[B]`.
        users: Indices of the users of the whole micro-batch, int64 `[B]`.
        start: First row of this rank's share in it.
        local: This rank's examples.
    """

    items: Tensor
    users: Tensor
    start: int
    local: Batch

    def moved(self, move: Callable[[Tensor], Tensor]) -> MicroBatch:
        """The same micro-batch with every tensor replaced by what `move` makes of it."""
        return MicroBatch(move(self.items), move(self.users), self.start, self.local.moved(move))


@dataclass(frozen=True)
class MacroBatch:
    """The micro-batches of one optimizer step.

    Attributes:
        step: Number of the macro-batch in the whole training, from 0.
        epoch: Epoch, from 0.
        micro: The micro-batches.
        examples: Examples over all ranks.
        weight: Sum of the weights over all ranks.
    """

    step: int
    epoch: int
    micro: tuple[MicroBatch, ...]
    examples: int
    weight: float

    def moved(self, move: Callable[[Tensor], Tensor]) -> MacroBatch:
        """The same macro-batch with every tensor replaced by what `move` makes of it."""
        return replace(self, micro=tuple(micro.moved(move) for micro in self.micro))

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the micro-batches."""
        for micro in self.micro:
            users = micro.local.users
            yield from (micro.items, micro.users, micro.local.item, micro.local.weight, users.user)
            for codes in (users.history, *users.features.values()):
                yield from (codes.values, codes.offsets)
            yield from users.numeric.values()


class ExampleReader:
    """Reads a job's training examples.

    Args:
        job: The job; its files, limits, batch sizes and seed are used.
        num_items: Items in the corpus.
        rank: This rank.
        world_size: Number of ranks.
        selection: Rows that are left out; by default none.

    Raises:
        ExamplesError: A file is missing or damaged, or there are no examples.
    """

    def __init__(
        self,
        job: TrainJob,
        num_items: int,
        rank: int = 0,
        world_size: int = 1,
        selection: RowSelection | None = None,
    ) -> None:
        self._job = job
        self._selection = selection or RowSelection()
        self._rank = rank
        self._world_size = world_size
        self._ahead = job.training.read_ahead
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            self._in_file = list(pool.map(parquet_rows, job.train_files))
        self._rows = [self._selection.rows_of(n, rows) for n, rows in enumerate(self._in_file)]
        self._limits = _limits(job, num_items)
        self._micro = job.training.batch_size
        self._macro = self._micro * job.training.accumulate
        self.examples = sum(self._rows)
        """Rows of one epoch."""
        if self.examples == 0:
            where = job.train_files[0] if job.train_files else "no files"
            raise ExamplesError("there are no training examples", where)
        self.largest_file = max(self._in_file)
        """Rows of the largest file."""
        self.steps_per_epoch = -(-self.examples // self._macro)
        """Macro-batches of one epoch."""
        self.steps = self.steps_per_epoch * job.training.epochs
        """Macro-batches of the whole training."""
        self.waited = 0.0
        """Seconds that the training waited for input."""

    def read(self, first_step: int = 0) -> Generator[MacroBatch, None, None]:
        """Macro-batches from a step to the end of the training.

        Args:
            first_step: Step to start from; earlier shards are not read again.

        Raises:
            ExamplesError: A file is damaged or holds a value that the model cannot use.
        """
        if not self._ahead:
            yield from self._in_turn(first_step)
            return
        ready: queue.Queue[MacroBatch | BaseException | None] = queue.Queue(self._ahead)
        stopped = threading.Event()
        thread = threading.Thread(
            target=self._fill, args=(first_step, ready, stopped), name="example-reader", daemon=True
        )
        thread.start()
        try:
            while True:
                asked = time.perf_counter()
                entry = ready.get()
                self.waited += time.perf_counter() - asked
                if entry is None:
                    return
                if isinstance(entry, BaseException):
                    raise entry
                yield entry
        finally:
            stopped.set()
            while thread.is_alive():
                # A reader that waits for room sees `stopped` only after room was made.
                try:
                    ready.get_nowait()
                except queue.Empty:
                    thread.join(0.01)

    def _in_turn(self, first_step: int) -> Iterator[MacroBatch]:
        """Reads in the training's own thread."""
        macro_batches = self._macro_batches(first_step)
        while True:
            asked = time.perf_counter()
            macro = next(macro_batches, None)
            self.waited += time.perf_counter() - asked
            if macro is None:
                return
            yield macro

    def _fill(
        self,
        first_step: int,
        ready: queue.Queue[MacroBatch | BaseException | None],
        stopped: threading.Event,
    ) -> None:
        try:
            for macro in self._macro_batches(first_step):
                ready.put(macro)
                if stopped.is_set():
                    return
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    def _macro_batches(self, first_step: int) -> Iterator[MacroBatch]:
        for epoch in range(first_step // self.steps_per_epoch, self._job.training.epochs):
            first = max(0, first_step - epoch * self.steps_per_epoch)
            step = epoch * self.steps_per_epoch + first
            for pool, own in self._windows(epoch, first * self._macro):
                yield self._cut(pool, own, step, epoch)
                step += 1

    def _windows(self, epoch: int, skip: int) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The epoch's rows, a macro-batch at a time, without the first `skip`.

        The first table has what every rank knows of every row; the second all columns of this
        rank's own rows.
        """
        pool, own = _Rest(), _Rest()
        for every, mine in self._shards(epoch, skip):
            pool.add(every)
            own.add(mine)
            while pool.size >= self._macro:
                yield pool.take(self._macro), own.take(self._share_of(self._macro))
        if pool.size:
            size = pool.size
            yield pool.take(size), own.take(self._share_of(size))

    def _share_of(self, rows: int) -> int:
        """This rank's rows of so many, cut into micro-batches."""
        whole, rest = divmod(rows, self._micro)
        sizes = (self._micro, rest)
        full, last = (
            stop - start for start, stop in (share(n, self._rank, self._world_size) for n in sizes)
        )
        return whole * full + last

    def _is_own(self, first: int, rows: int) -> npt.NDArray[np.bool_]:
        """Which rows of an epoch are this rank's, from a place on."""
        places = np.arange(first, first + rows)
        inside = places % self._micro
        size = np.minimum(self._micro, self.examples - (places - inside))
        start = size * self._rank // self._world_size
        stop = size * (self._rank + 1) // self._world_size
        own: npt.NDArray[np.bool_] = (start <= inside) & (inside < stop)
        return own

    def _shards(self, epoch: int, skip: int) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The epoch's shuffled shards, without the first `skip` rows; tables as in `_windows`."""
        seed, place = self._job.training.seed, skip
        order = np.random.default_rng([seed, epoch]).permutation(len(self._rows)).tolist()
        while order and skip >= self._rows[order[0]]:
            skip -= self._rows[order.pop(0)]
        for shard, table in zip(order, self._tables(order), strict=True):
            generator = np.random.default_rng([seed, epoch, shard + 1])
            shuffled = generator.permutation(self._rows[shard])[skip:]
            skip = 0
            if self._world_size == 1:
                own = table.take(pa.array(shuffled))
                yield own.select(_POOL_COLUMNS), own
                continue
            # Lists are costly to move: only those of own rows are.
            mine = shuffled[self._is_own(place, len(shuffled))]
            place += len(shuffled)
            every = table.select(_POOL_COLUMNS).take(pa.array(shuffled))
            yield every, table.take(pa.array(mine))

    def _tables(self, shards: Sequence[int]) -> Iterator[pa.Table]:
        """Whole shards; in the background one is fetched while the one before it is cut up."""
        if not self._ahead:
            yield from (self._read(shard) for shard in shards)
            return
        with ThreadPoolExecutor(1, "shard-reader") as pool:
            coming = [pool.submit(self._read, shard) for shard in shards[:1]]
            for number in range(len(shards)):
                coming += [pool.submit(self._read, shard) for shard in shards[number + 1 :][:1]]
                yield coming.pop(0).result()

    def _read(self, shard: int) -> pa.Table:
        file, rows = self._job.train_files[shard], self._in_file[shard]
        names = [*user_columns(self._job.model), "item", "weight", *self._selection.columns]
        table = read_parquet(file, names)
        if table.num_rows != rows:
            raise ExamplesError(f"{table.num_rows} rows instead of {rows}: the file changed", file)
        if not _plainly_good(table, self._limits):
            try:
                _check(Batch.from_arrow(table, self._job.model), self._limits, file)
            except ValueError as error:
                raise ExamplesError(str(error), file) from error
        return self._selection.kept(shard, table)

    def _cut(self, pool: pa.Table, own: pa.Table, step: int, epoch: int) -> MacroBatch:
        micro, taken = [], 0
        for first in range(0, pool.num_rows, self._micro):
            part = pool.slice(first, self._micro)
            start, stop = share(part.num_rows, self._rank, self._world_size)
            local = Batch.from_arrow(own.slice(taken, stop - start), self._job.model)
            taken += stop - start
            micro.append(MicroBatch(integers(part, "item"), integers(part, "user"), start, local))
        weight = float(pool.column("weight").to_numpy().astype(np.float64).sum())
        return MacroBatch(step, epoch, tuple(micro), pool.num_rows, weight)


class _Rest:
    """Rows that wait for a macro-batch."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self.size = 0

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        self.size += table.num_rows

    def take(self, rows: int) -> pa.Table:
        """The first rows, which are no longer kept."""
        joined = pa.concat_tables(self._tables)
        self._tables = [joined.slice(rows)]
        self.size -= rows
        return joined.slice(0, rows)


def _limits(job: TrainJob, num_items: int) -> Mapping[str, int]:
    """Exclusive upper limit of the values of each column."""
    limits = {"item": num_items, "user": job.num_users}
    if has_history(job.model):
        limits["history"] = num_items
    for f in job.model.user.coded:
        if f.kind != "history" and f.table != FULL_USER_TABLE:
            limits[f.name] = job.table_rows[f.table]
    return limits


def _plainly_good(table: pa.Table, limits: Mapping[str, int]) -> bool:
    """Whether Arrow sees at once that a table is as it should be; else one has to look closer."""
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_list(column.type):
            if column.null_count:
                return False
            column = pc.list_flatten(column)
        if column.null_count:
            return False
        if pa.types.is_integer(column.type):
            ends = pc.min_max(column).as_py()
            limit = limits.get(name, _ANY)
            if len(column) and not (ends["min"] >= 0 and ends["max"] < limit):
                return False
        elif name == "weight" and pa.types.is_floating(column.type):
            weight = column.to_numpy()
            if not (np.isfinite(weight).all() and (weight >= 0).all()):
                return False
        else:
            return False
    return True


def _check(batch: Batch, limits: Mapping[str, int], file: str) -> None:
    """Refuses values that an embedding kernel would silently map to another row.

    Raises:
        ExamplesError: Names the column and the row of the first such value.
    """
    flat = {"item": batch.item, "user": batch.users.user}
    ragged = {**batch.users.features, "history": batch.users.history}
    for name, limit in limits.items():
        values = flat[name] if name in flat else ragged[name].values
        wrong = (values < 0) | (values >= limit)
        if bool(wrong.any()):
            place = int(wrong.nonzero()[0])
            row = place if name in flat else int(ragged[name].row_ids()[place])
            raise ExamplesError(
                f"column '{name}' has {int(values[place])}, which is outside [0, {limit})",
                file,
                row,
            )
    bad = ~(torch.isfinite(batch.weight) & (batch.weight >= 0))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ExamplesError(f"weight {float(batch.weight[row])}", file, row)
