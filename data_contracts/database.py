"""DuckDB over streams of record batches: groups and joins that may be larger than the memory."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import duckdb

Stream = tuple[pa.Schema, Iterator[pa.RecordBatch]]


@contextmanager
def tables(**streams: Stream) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection on which each stream is a table, which can be read once."""
    connection = _connection()
    for name, (schema, batches) in streams.items():
        connection.register(name, pa.RecordBatchReader.from_batches(schema, batches))
    try:
        yield connection
    finally:
        for name in streams:
            connection.unregister(name)


def storable(kind: pa.DataType) -> pa.DataType:
    """The type as DuckDB is given it.

    Times lose their zone, whose handling would ask for one more package; the instants stay.
    """
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind


def quoted(text: str) -> str:
    """A name as SQL writes it."""
    return '"' + text.replace('"', '""') + '"'


def use_threads(count: int) -> None:
    """Sets how many threads DuckDB works with; by default as many as there are cores."""
    _connection().execute(f"SET threads = {int(count)}")


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """The database of this process; opening one costs more than counting a small day."""
    import duckdb

    folder = tempfile.mkdtemp(prefix="tailtower-duckdb-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # By default it would take four fifths of the machine, whose other processes need theirs.
    return duckdb.connect(config={"temp_directory": folder, "memory_limit": "1GiB"})
