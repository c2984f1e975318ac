"""Which rows of the shards are trained on, and which are held out to validate on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from models.batch import integers, user_columns
from models.config import TrainJob
from models.errors import ExamplesError
from models.storage import parquet_rows, read_parquet

Ints = npt.NDArray[np.int64]

_SPARE = 4  # users drawn for each one wanted: the last event of some is nothing new to them
_STREAM = 7919  # a stream of random numbers apart from those of the shuffling


@dataclass(frozen=True)
class RowSelection:
    """Rows that are left out of the training.

    Attributes:
        held_out: Row numbers by shard, ascending.
        since_us: Rows before this time are left out, too; None for no such limit.
        recent: Rows of each shard that are not before that time.
        users: Users to validate on: the columns of the user tower, `seen` (what to leave out of
            the ranking) and `targets`; None for no validation.
    """

    held_out: Mapping[int, Ints] = field(default_factory=dict)
    since_us: int | None = None
    recent: Sequence[int] = ()
    users: pa.Table | None = None

    @property
    def size(self) -> int:
        """Rows that are held out."""
        return sum(rows.size for rows in self.held_out.values())

    @property
    def columns(self) -> list[str]:
        """Columns of a shard that `kept` looks at."""
        return [] if self.since_us is None else ["timestamp"]

    def kept(self, shard: int, table: pa.Table) -> pa.Table:
        """A shard's rows without those that are left out."""
        rows = self.held_out.get(shard)
        if rows is None and self.since_us is None:
            return table
        mask = np.ones(table.num_rows, dtype=bool)
        if self.since_us is not None:
            mask = integers(table, "timestamp").numpy() >= self.since_us
        if rows is not None:
            mask[rows] = False
        return table.filter(pa.array(mask))

    def rows_of(self, shard: int, rows: int) -> int:
        """Rows of a shard that are trained on, of so many in the file."""
        held_out = self.held_out.get(shard)
        kept = rows if self.since_us is None else self.recent[shard]
        return kept if held_out is None else kept - held_out.size


def select_rows(job: TrainJob) -> RowSelection:
    """Holds out the last event of some train users.

    The users are drawn by the seed; a user whose last item is among the earlier ones, or who has
    no earlier event, is passed over. Only training examples are read, so nothing of a test day
    can reach the validation, and through it the choice of an epoch. A job that names a file of
    users to validate on holds nothing out. Of a job that continues from an earlier model only
    events are chosen that are new to that model.

    Args:
        job: The job.

    Raises:
        ExamplesError: A file is missing or damaged, or lacks a column.
    """
    settings = job.training.validation
    random = np.random.default_rng([job.training.seed, _STREAM])
    if job.since_us is None:
        every = RowSelection()
        sizes = [parquet_rows(file) for file in job.train_files]
    else:
        sizes = [_recent_rows(file, job.since_us) for file in job.train_files]
        every = RowSelection(since_us=job.since_us, recent=sizes)
    if settings.users == 0:
        return every
    if job.validation_file is not None:
        return replace(every, users=_users_of_file(job, settings.users, random))
    wanted = min(settings.users, int(settings.max_share * sum(sizes)))
    if wanted == 0:
        return every
    drawn = random.permutation(job.num_users)[: _SPARE * wanted]
    events = _events_of(job, drawn)
    chosen = _last_events(events)
    if job.since_us is not None:
        chosen = chosen[events.time[chosen] >= job.since_us]
    chosen = chosen[:wanted]
    if chosen.size == 0:
        return every
    chosen = chosen[np.lexsort((events.row[chosen], events.shard[chosen]))]
    held_out = {
        int(shard): events.row[chosen][events.shard[chosen] == shard]
        for shard in np.unique(events.shard[chosen])
    }
    tables = [
        _read(job.train_files[shard], user_columns(job.model)).take(pa.array(rows))
        for shard, rows in held_out.items()
    ]
    lists = pa.list_(pa.int32())
    users = pa.concat_tables(tables)
    users = users.append_column("seen", pa.array(_other_items(events, chosen), lists))
    targets = [[item] for item in events.item[chosen].tolist()]
    users = users.append_column("targets", pa.array(targets, lists))
    return replace(every, held_out=held_out, users=users)


def _recent_rows(file: str, since_us: int) -> int:
    times = integers(_read(file, ["timestamp"]), "timestamp")
    return int((times >= since_us).sum())


@dataclass(frozen=True)
class _Events:
    """Training examples of the drawn users: number of the draw, time, shard, row and item."""

    who: Ints
    time: Ints
    shard: Ints
    row: Ints
    item: Ints


def _events_of(job: TrainJob, drawn: Ints) -> _Events:
    place = np.full(job.num_users, -1)
    place[drawn] = np.arange(drawn.size)
    parts: list[tuple[Ints, ...]] = []
    for shard, file in enumerate(job.train_files):
        table = _read(file, ["user", "item", "timestamp"])
        try:
            user, item, time = (
                integers(table, name).numpy() for name in ("user", "item", "timestamp")
            )
        except ValueError as error:
            raise ExamplesError(str(error), file) from error
        # What lies outside is refused when the shard is read for training.
        inside = (user >= 0) & (user < job.num_users)
        row = np.flatnonzero(inside & (place[np.where(inside, user, 0)] >= 0))
        parts.append((place[user[row]], time[row], np.full(row.size, shard), row, item[row]))
    return _Events(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _last_events(events: _Events) -> Ints:
    """Positions of the users' last events that are new to them, in the order of the draw."""
    order = np.lexsort((events.row, events.shard, events.time, events.who))
    who = events.who[order]
    is_last = np.append(who[1:] != who[:-1], True)[: who.size]
    last, earlier = order[is_last], order[~is_last]
    has_more = np.isin(events.who[last], events.who[earlier])
    width = int(events.item.max(initial=0)) + 1
    pairs = events.who * width + events.item
    return last[has_more & ~np.isin(pairs[last], pairs[earlier])]


def _other_items(events: _Events, chosen: Ints) -> list[list[int]]:
    """Different items of each chosen event's user but that of the event, ascending."""
    number = np.full(int(events.who.max()) + 1, -1)
    number[events.who[chosen]] = np.arange(chosen.size)
    others = np.ones(events.who.size, dtype=bool)
    others[chosen] = False
    others &= number[events.who] >= 0
    pairs = np.unique(np.stack([number[events.who[others]], events.item[others]]), axis=1)
    bounds = np.searchsorted(pairs[0], np.arange(chosen.size + 1))
    return [part.tolist() for part in np.split(pairs[1], bounds[1:-1])]


def _users_of_file(job: TrainJob, wanted: int, random: np.random.Generator) -> pa.Table:
    assert job.validation_file is not None
    columns = [*user_columns(job.model), "seen", "targets"]
    users = _read(job.validation_file, columns)
    measured = np.flatnonzero(pc.list_value_length(users["targets"]).to_numpy() > 0)
    chosen = np.sort(random.permutation(measured)[:wanted])
    if chosen.size == 0:
        raise ExamplesError("no user to validate on has a target", job.validation_file)
    return users.take(pa.array(chosen))


def _read(file: str, columns: Sequence[str]) -> pa.Table:
    return read_parquet(file, columns)
