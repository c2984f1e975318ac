"""Reading of Parquet files from a local path or any `pyarrow.fs` or fsspec URL."""

from __future__ import annotations

from collections.abc import Sequence

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from models.errors import ExamplesError


def locate(location: str) -> tuple[pafs.FileSystem, str]:
    """File system and path of a local path or URL.

    Raises:
        ExamplesError: Nothing that is installed reads such a URL.
    """
    if "://" not in location:
        return pafs.LocalFileSystem(), location
    try:
        filesystem, path = pafs.FileSystem.from_uri(location)
    except pa.ArrowInvalid:
        # Not one of Arrow's own: fsspec knows many more (Azure, HTTP, …).
        try:
            found, path = fsspec.core.url_to_fs(location)
        except (ValueError, ImportError) as error:
            raise ExamplesError(f"no file system for this URL: {error}", location) from error
        filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(found))
    return filesystem, path


def parquet_rows(location: str) -> int:
    """Rows of a Parquet file, from its footer.

    Raises:
        ExamplesError: The file is missing or damaged.
    """
    filesystem, path = locate(location)
    try:
        return int(pq.read_metadata(path, filesystem=filesystem).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise ExamplesError(f"the file cannot be read: {error}", location) from error


def mean_elements(location: str, columns: Sequence[str]) -> dict[str, float]:
    """Mean number of elements in each list column of a Parquet file, from its footer.

    An empty list counts as one element. Columns that the file lacks, and all columns of an empty
    file, are left out.

    Raises:
        ExamplesError: The file is missing or damaged.
    """
    filesystem, path = locate(location)
    try:
        metadata = pq.read_metadata(path, filesystem=filesystem)
    except (OSError, pa.ArrowException) as error:
        raise ExamplesError(f"the file cannot be read: {error}", location) from error
    totals: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            name = column.path_in_schema.split(".")[0]
            if name in columns:
                totals[name] = totals.get(name, 0) + column.num_values
    return {name: total / metadata.num_rows for name, total in totals.items() if metadata.num_rows}


def read_parquet(location: str, columns: Sequence[str] | None = None) -> pa.Table:
    """One Parquet file.

    Args:
        location: Path or URL.
        columns: The columns that are needed; all by default.

    Raises:
        ExamplesError: The file is missing or damaged, or lacks a column.
    """
    filesystem, path = locate(location)
    try:
        # Partitioning is off: a folder called `dt=…` must not become a column.
        table = pq.read_table(
            path,
            columns=None if columns is None else list(columns),
            filesystem=filesystem,
            partitioning=None,
        )
    except (OSError, pa.ArrowException) as error:
        raise ExamplesError(f"the file cannot be read: {error}", location) from error
    missing = sorted(set(columns or ()) - set(table.column_names))
    if missing:
        raise ExamplesError(f"no column {', '.join(missing)}", location)
    return table
