"""Exchange of rows between tasks through files in the lake's scratch space.

A writer leaves one Arrow IPC file with one record batch for each part; a reader of part `p`
takes batch `p` of every file. Memory stays at one part, any worker can serve any part, and the
lake is the only thing that workers have to share.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from tasks.lake import Lake
from tasks.longtail.columns import from_arrow
from tasks.longtail.id_hash import partition_of

SCRATCH = "scratch"


@dataclass(frozen=True)
class Scratch:
    """A folder in the lake for one step's intermediate files."""

    url: str
    path: str

    def lake(self) -> Lake:
        """The lake that holds it."""
        return Lake(self.url)

    def file(self, name: str) -> str:
        """Lake path of an intermediate file."""
        return f"{self.path}/{name}.arrow"


@contextmanager
def scratch_folder(lake: Lake) -> Iterator[Scratch]:
    """A fresh scratch folder, removed at the end whatever happens."""
    scratch = Scratch(lake.url, f"{SCRATCH}/{uuid.uuid4().hex[:12]}")
    try:
        yield scratch
    finally:
        lake.delete(scratch.path)


def write_parts(lake: Lake, path: str, parts: int, make: Callable[[int], pa.Table]) -> None:
    """Writes a file of parts.

    Args:
        lake: The lake.
        path: Lake path of the file.
        parts: Number of parts.
        make: Gives the rows of a part; called once for each, in order.
    """
    with lake.open_output(path) as stream:
        writer = None
        for part in range(parts):
            table = make(part)
            if writer is None:
                writer = pa.ipc.new_file(stream, table.schema)
            # A part is one batch, also when it is empty: readers find it by its number.
            writer.write_batch(_one_batch(table))
        assert writer is not None
        writer.close()


def write_split(lake: Lake, path: str, frame: pl.DataFrame, key: str, parts: int) -> None:
    """Writes a frame split by the hash of an ID column without nulls."""
    write_placed(lake, path, frame, partition_of(frame[key], parts), parts)


def write_placed(
    lake: Lake, path: str, frame: pl.DataFrame, part_of: pl.Series, parts: int
) -> None:
    """Writes a frame split by the part of each row."""
    if parts == 1:
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
        write_parts(lake, path, 1, lambda _: table)
        return
    placed = frame.with_columns(part_of.alias("__part"))
    placed = placed.sort("__part", maintain_order=True)
    starts = placed["__part"].search_sorted(list(range(parts + 1)))
    table = placed.drop("__part").to_arrow(compat_level=pl.CompatLevel.oldest())

    def rows(part: int) -> pa.Table:
        start = int(starts[part])
        return table.slice(start, int(starts[part + 1]) - start)

    write_parts(lake, path, parts, rows)


def read_part(lake: Lake, paths: Sequence[str], part: int) -> pa.Table:
    """One part of every file, in the order of the files."""
    batches = []
    for path in paths:
        with lake.open_input(path) as stream:
            batches.append(pa.ipc.open_file(stream).get_batch(part))
    return pa.Table.from_batches(batches)


def read_part_frame(lake: Lake, paths: Sequence[str], part: int) -> pl.DataFrame:
    """One part of every file as a Polars frame."""
    return from_arrow(read_part(lake, paths, part))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    if len(batches) > 1:
        raise ValueError("a part does not fit one record batch; use more parts")
    return batches[0]
