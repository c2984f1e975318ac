"""The items that most often come with an item, for features of kind `neighbours`.

Two items come together once for each train user who has both. The score of a pair is the cosine
of item-based collaborative filtering (Sarwar et al., WWW 2001), less half a user against pairs that
only chance brought together: (c_ij - 1/2) / sqrt(c_i c_j). Whole sets of pairs are counted by
products of sparse matrices, block of users by block, and merged by item, so memory depends neither
on the users nor on the items.

Each window is counted anew: at most `LONGEST` squared pairs a user, once a run. Counts of earlier
days could not be added up, for a user's items of two days are pairs as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from scipy import sparse

from tasks.lake import Output
from tasks.longtail.cluster import Runner
from tasks.longtail.columns import array_of
from tasks.longtail.exchange import (
    Scratch,
    read_part,
    read_part_frame,
    write_parts,
    write_placed,
)
from tasks.longtail.lists import Int32s, Int64s, ListColumn

LONGEST = 200
"""Items of a user that are paired, the least frequent ones: frequent items have enough other users,
and pairs grow with the square."""
BLOCK_PAIRS = 1 << 24
"""Pairs that are held at a time."""


@dataclass(frozen=True)
class PairTask:
    """Counting the pairs among the items of some users."""

    scratch: Scratch
    users: str
    """Scratch file of the users, with their items in `seen`."""
    number: int
    ranges: int
    """Among how many files' parts the pairs are divided."""

    def target(self, block: int) -> str:
        """Lake path of the pairs of a block of users."""
        return self.scratch.file(f"pairs-{self.number:05d}-{block:05d}")


@dataclass(frozen=True)
class NearestTask:
    """Choosing the neighbours of some of the items."""

    scratch: Scratch
    corpus: str
    """Scratch file of the corpus, before it has neighbours."""
    pairs: tuple[str, ...]
    number: int
    count: int
    """Neighbours of an item."""

    @property
    def target(self) -> str:
        """Lake path of the neighbours."""
        return self.scratch.file(f"neighbours-{self.number:05d}")


@dataclass(frozen=True)
class FinishTask:
    """Writing of the corpus with its neighbours."""

    scratch: Scratch
    corpus: str
    nearest: tuple[str, ...]
    features: tuple[tuple[str, int], ...]
    output: str
    """Lake path of the examples."""


def write_neighbours(
    runner: Runner,
    scratch: Scratch,
    *,
    corpus: str,
    users: Sequence[str],
    pairs: int,
    features: tuple[tuple[str, int], ...],
    output: str,
) -> None:
    """Writes the corpus of the examples, with a column of neighbours for each feature.

    Args:
        runner: Where the work runs.
        scratch: Folder for intermediate files.
        corpus: Scratch file of the corpus, with `train_users` and `owns_row` of each item.
        users: Scratch files of the train users.
        pairs: Pairs of items, as `paired` counts them.
        features: Name of each feature, and how many neighbours it wants.
        output: Lake path of the examples.
    """
    ranges = max(1, -(-pairs // BLOCK_PAIRS))
    counting = [PairTask(scratch, path, number, ranges) for number, path in enumerate(users)]
    files = tuple(path for some in runner.map("pair items", count_pairs, counting) for path in some)
    count = max(wanted for _, wanted in features)
    choosing = [NearestTask(scratch, corpus, files, n, count) for n in range(ranges)]
    nearest = tuple(runner.map("find neighbours", find_nearest, choosing))
    finish = FinishTask(scratch, corpus, nearest, features, output)
    runner.map("write the corpus", finish_corpus, [finish])


def paired(seen: ListColumn) -> int:
    """Ordered pairs of the items of users."""
    return int((np.minimum(seen.lengths, LONGEST) ** 2).sum())


def count_pairs(task: PairTask) -> list[str]:
    """Writes how many of some users have each pair of items; returns the files."""
    lake = task.scratch.lake()
    seen = _lists(read_part(lake, [task.users], 0).column("seen"))
    written = []
    for block, rows in enumerate(_blocks(seen)):
        users = sparse.csr_array(
            (np.ones(rows.values.size, np.int32), rows.values, np.append(0, rows.lengths.cumsum())),
            shape=(len(rows), int(seen.values.max(initial=0)) + 1),
        )
        together = sparse.coo_array(users.T @ users)
        item, other = together.coords
        apart = item != other
        frame = pl.DataFrame(
            {
                "item": item[apart].astype(np.int32),
                "other": other[apart].astype(np.int32),
                "users": together.data[apart],
            }
        )
        path = task.target(block)
        write_placed(lake, path, frame, frame["item"] % task.ranges, task.ranges)
        written.append(path)
    return written


def find_nearest(task: NearestTask) -> str:
    """Writes the neighbours of the items of one range; returns the file."""
    lake = task.scratch.lake()
    items = read_part_frame(lake, [task.corpus], 0).select("train_users", "owns_row")
    pairs = pl.DataFrame(schema={"item": pl.Int32, "other": pl.Int32, "users": pl.Int32})
    if task.pairs:
        pairs = read_part_frame(lake, task.pairs, task.number)
    # A shared bucket would say nothing of the items in it.
    pairs = pairs.filter(items["owns_row"].gather(pairs["other"]))
    pairs = pairs.group_by("item", "other").agg(pl.col("users").sum())
    owners = [items["train_users"].gather(pairs[name]).cast(pl.Float64) for name in _ENDS]
    score = (pairs["users"] - 0.5) / (owners[0] * owners[1]).sqrt()
    best = (
        pairs.with_columns(score=score)
        .sort("item", "score", "other", descending=[False, True, False])
        .group_by("item", maintain_order=True)
        .head(task.count)
        .select(_ENDS)
    )
    table = best.to_arrow(compat_level=pl.CompatLevel.oldest())
    write_parts(lake, task.target, 1, lambda _: table)
    return task.target


def finish_corpus(task: FinishTask) -> int:
    """Writes the corpus with its neighbours; returns the number of items."""
    lake = task.scratch.lake()
    table = read_part(lake, [task.corpus], 0).drop_columns(["train_users", "owns_row"])
    best = read_part_frame(lake, task.nearest, 0).sort("item", maintain_order=True)
    lengths = np.bincount(best["item"].to_numpy(), minlength=len(table)).astype(np.int64)
    lists = ListColumn.of_lengths(lengths, best["other"].to_numpy())
    for name, wanted in task.features:
        first = ListColumn(lists.starts, np.minimum(lists.lengths, wanted), lists.values)
        table = table.append_column(name, first.to_arrow())
    Output(lake, task.output).write_table("items/part-0.parquet", table)
    return int(table.num_rows)


_ENDS = ["item", "other"]


def _blocks(seen: ListColumn) -> Iterator[ListColumn]:
    """Users whose pairs are counted together; of each, the items that are paired."""
    # Items are in the order of their frequency: the least frequent ones stand last.
    lengths = np.minimum(seen.lengths, LONGEST)
    block = (lengths**2).cumsum() // BLOCK_PAIRS
    starts = seen.starts + seen.lengths - lengths
    for first, last in _bounds(block):
        chosen = slice(first, last)
        taken = ListColumn(starts[chosen], lengths[chosen], seen.values)
        yield ListColumn.of_lengths(taken.lengths, taken.flat())


def _bounds(block: Int64s) -> Iterator[tuple[int, int]]:
    changes = np.flatnonzero(np.diff(block)) + 1
    edges = [0, *changes.tolist(), len(block)]
    return ((a, b) for a, b in pairwise(edges) if a < b)


def _lists(column: pa.ChunkedArray) -> ListColumn:
    lists = column.combine_chunks()
    offsets = lists.offsets.to_numpy().astype(np.int64)
    values: Int32s = lists.values.to_numpy()
    return ListColumn(offsets[:-1], np.diff(offsets), values)


def corpus_with_owners(
    table: pa.Table, train_users: Int64s, owns_row: npt.NDArray[np.bool_]
) -> pa.Table:
    """A corpus as `write_neighbours` reads it."""
    return table.append_column("train_users", array_of(train_users)).append_column(
        "owns_row", pa.array(owns_row)
    )
