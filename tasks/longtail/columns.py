"""Reading the columns of raw Parquet files as Polars frames, with their types checked first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import DataError
from tasks.lake import Lake

_FIX_ID = "deliver it as string or integer (or a list of those)"


def read_schema(lake: Lake, path: str) -> pq.FileMetaData:
    """Footer of a Parquet file.

    Raises:
        DataError: The file is missing or is not a Parquet file.
    """
    with lake.open_input(path) as stream:
        try:
            return pq.read_metadata(stream)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"not a readable Parquet file: {error}",
                where=f"{lake.url}/{path}",
                fix="deliver the file again",
            ) from error


def id_type(data_type: pa.DataType) -> pl.DataType | None:
    """Polars type of an ID column, or None when the type is none of an ID.

    Strings stay strings. Integers become Int64, except UInt64, which keeps its range.
    """
    if pa.types.is_dictionary(data_type):
        return id_type(data_type.value_type)
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return pl.String()
    if pa.types.is_string_view(data_type):
        return pl.String()
    if pa.types.is_uint64(data_type):
        return pl.UInt64()
    if pa.types.is_integer(data_type):
        return pl.Int64()
    return None


def is_list(data_type: pa.DataType) -> bool:
    """Whether a column holds lists."""
    return bool(
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_fixed_size_list(data_type)
    )


def id_field(schema: pa.Schema, column: str, where: str) -> tuple[pl.DataType, bool]:
    """Type of the IDs in a column, and whether the column holds lists of them.

    Raises:
        DataError: The column is missing or holds something else than IDs.
    """
    index = schema.get_field_index(column)
    if index < 0:
        raise DataError(
            f"there is no column '{column}'",
            where=where,
            fix=f"deliver it, or name one of: {', '.join(schema.names)}",
        )
    data_type = schema.field(index).type
    listed = is_list(data_type)
    found = id_type(data_type.value_type if listed else data_type)
    if found is None:
        raise DataError(f"column '{column}' is {data_type}, not an ID", where=where, fix=_FIX_ID)
    return found, listed


def id_or_nothing(schema: pa.Schema, column: str, where: str) -> tuple[pl.DataType, bool]:
    """Like `id_field`; the type is Null where a column holds no value.

    A writer that saw only nulls, or only empty lists, leaves Arrow's null type behind.

    Raises:
        DataError: The column is missing or holds something else than IDs.
    """
    index = schema.get_field_index(column)
    if index >= 0:
        data_type = schema.field(index).type
        listed = is_list(data_type)
        if pa.types.is_null(data_type.value_type if listed else data_type):
            return pl.Null(), listed
    return id_field(schema, column, where)


def scan(lake: Lake, path: str, columns: Sequence[str]) -> pl.LazyFrame:
    """Chosen columns of a Parquet file; a local file is read lazily, others through Arrow."""
    if lake.is_local:
        frame = pl.scan_parquet(lake.abspath(path), hive_partitioning=False, glob=False)
        return frame.select(columns)
    return from_arrow(lake.read_table(path, list(columns))).lazy()


def collect(lake: Lake, path: str, frames: Sequence[pl.LazyFrame]) -> list[pl.DataFrame]:
    """Runs queries over one file in one pass.

    Raises:
        DataError: The file vanished or is damaged.
    """
    try:
        return pl.collect_all(frames, engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(
            f"cannot read the file: {error}",
            where=f"{lake.url}/{path}",
            fix="check that it was not removed or damaged, or deliver it again",
        ) from error


def from_arrow(table: pa.Table) -> pl.DataFrame:
    """An Arrow table as a Polars frame."""
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def to_arrow(frame: pl.DataFrame) -> pa.Table:
    """A Polars frame as an Arrow table with plain `string` and `list` types."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    return table.cast(pa.schema([field.with_type(_plain(field.type)) for field in table.schema]))


def _plain(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(data_type):
        return pa.string()
    if pa.types.is_large_list(data_type):
        return pa.list_(_plain(data_type.value_type))
    return data_type


def array_of(values: npt.NDArray[Any]) -> pa.Array:
    """A numpy vector of numbers as an Arrow array, without a copy.

    `pa.array` would do the same after importing pandas, which costs a second.
    """
    values = np.ascontiguousarray(values)
    data_type = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(data_type, values.size, [None, pa.py_buffer(values)])
