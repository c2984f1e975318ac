"""Columns of numbers beside the columns of codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from tasks.errors import DataError
from tasks.longtail.lists import Int64s


@dataclass(frozen=True)
class NumberColumn:
    """N numbers, some of them missing.

    Attributes:
        values: Float64 `[N]`; NaN where there is none.
    """

    values: npt.NDArray[np.float64]

    @classmethod
    def of(cls, column: pl.Series) -> NumberColumn:
        """A column of numbers with nulls."""
        return cls(column.cast(pl.Float64).fill_null(float("nan")).to_numpy())

    def __len__(self) -> int:
        return int(self.values.size)

    def take(self, rows: Int64s) -> NumberColumn:
        """The numbers of chosen rows."""
        return NumberColumn(self.values[rows])

    def to_arrow(self) -> pa.Array:
        """The numbers as `double`, null where there is none."""
        return pa.array(self.values, pa.float64(), from_pandas=True)


def check_numbers(schema: pa.Schema, column: str, where: str) -> None:
    """Checks that a column is there and holds numbers.

    Raises:
        DataError: It is not, or does not.
    """
    index = schema.get_field_index(column)
    if index < 0:
        raise DataError(
            f"there is no column '{column}'",
            where=where,
            fix=f"deliver it, or name one of: {', '.join(schema.names)}",
        )
    kind = schema.field(index).type
    fits = (pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    if not (any(fit(kind) for fit in fits) or pa.types.is_decimal(kind)):
        raise DataError(
            f"column '{column}' is {kind}, not a number",
            where=where,
            fix="deliver it as a number, or take it as an ID with a table of its own",
        )


def check_finite(rows: pl.DataFrame, key: str, column: str, where: str) -> None:
    """Checks that the numbers of a side table are finite; a missing one is null.

    Raises:
        DataError: One is not; names the first.
    """
    wrong = rows.filter(pl.col(column).is_not_null() & ~pl.col(column).is_finite())
    if wrong.height:
        raise DataError(
            f"column '{column}' is {wrong[column][0]} for {key} {wrong[key][0]!r}, and not finite "
            f"in {wrong.height} rows",
            where=where,
            fix="deliver null where there is no value",
        )
