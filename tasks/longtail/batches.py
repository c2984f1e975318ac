"""Reading the ID columns of a raw file piece by piece, so that memory does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import DataError
from tasks.lake import Lake
from tasks.longtail.columns import collect, from_arrow, id_or_nothing, read_schema, scan

_REFERENCE_BYTES = 16
"""What Polars and Arrow need to point at one string or list, besides its content."""


@dataclass(frozen=True)
class IdColumn:
    """An ID column of a file.

    Attributes:
        dtype: Type of the IDs; Null when the column holds none.
        listed: Whether it holds lists of IDs.
    """

    dtype: pl.DataType
    listed: bool


class IdFile:
    """The ID columns of one Parquet file.

    Args:
        lake: The lake.
        path: Lake path of the file.
        columns: Names of the columns.

    Raises:
        DataError: The file cannot be read, or a column is missing or holds no IDs.
    """

    def __init__(self, lake: Lake, path: str, columns: tuple[str, ...]) -> None:
        self._lake = lake
        self._path = path
        self._metadata = read_schema(lake, path)
        schema = self._metadata.schema.to_arrow_schema()
        found = {name: id_or_nothing(schema, name, self._where) for name in columns}
        self.columns = {name: IdColumn(*column) for name, column in found.items()}

    @property
    def rows(self) -> int:
        """Rows, as the footer says."""
        return int(self._metadata.num_rows)

    @property
    def _where(self) -> str:
        return f"{self._lake.url}/{self._path}"

    def batches(self, batch_bytes: int) -> Iterator[pl.DataFrame]:
        """The columns, about `batch_bytes` at a time.

        Raises:
            DataError: The file vanished or is damaged.
        """
        names = list(self.columns)
        rows = max(1, int(batch_bytes / self._bytes_per_row()))
        largest = max((group.num_rows for group in self._row_groups()), default=0)
        if self._lake.is_local and largest <= rows:
            # Polars decodes whole row groups, twice as fast as pyarrow decodes strings.
            frame = scan(self._lake, self._path, names)
            for start in range(0, self.rows, rows):
                yield collect(self._lake, self._path, [frame.slice(start, rows)])[0]
            return
        yield from self._by_pages(names, rows)

    def _by_pages(self, names: list[str], rows: int) -> Iterator[pl.DataFrame]:
        with self._lake.open_input(self._path) as stream:
            try:
                file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20)
                for batch in file.iter_batches(rows, columns=names, use_threads=False):
                    yield from_arrow(pa.Table.from_batches([batch]))
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(
                    f"cannot read the file: {error}",
                    where=self._where,
                    fix="check that it was not removed or damaged, or deliver it again",
                ) from error

    def _row_groups(self) -> list[pq.RowGroupMetaData]:
        return [self._metadata.row_group(n) for n in range(self._metadata.num_row_groups)]

    def _bytes_per_row(self) -> float:
        plain = sum(8 for column in self.columns.values() if _is_plain(column))
        other = {name for name, column in self.columns.items() if not _is_plain(column)}
        size = 0
        for group in self._row_groups():
            for number in range(group.num_columns):
                column = group.column(number)
                if column.path_in_schema.split(".")[0] in other:
                    size += column.total_uncompressed_size + _REFERENCE_BYTES * column.num_values
        return max(1.0, plain + size / max(1, self.rows))


def _is_plain(column: IdColumn) -> bool:
    return column.dtype.is_integer() and not column.listed


def counted_types(columns: Mapping[str, IdColumn]) -> dict[str, str]:
    """Name of each column's ID type; `Null` for a column that can hold no ID."""
    return {name: str(column.dtype) for name, column in columns.items()}
