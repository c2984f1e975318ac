"""A split that the data brings itself: a column with `train` or `test` in every row."""

from __future__ import annotations

from typing import Literal

import polars as pl

from tasks.errors import DataError

Role = Literal["train", "test"]


def rows_of_role(frame: pl.DataFrame, column: str | None, role: Role, where: str) -> pl.DataFrame:
    """The rows that are trained on, or those that are tested on.

    Args:
        frame: Some rows of a file.
        column: The column that says which; None where days say it, and all rows are returned.
        role: Which rows.
        where: The file, for the message.

    Raises:
        DataError: A row is neither.
    """
    if column is None:
        return frame
    split = frame[column].cast(pl.String)
    strange = split.filter(~split.is_in(["train", "test"]).fill_null(False))
    if len(strange):
        raise DataError(
            f"a row says {strange[0]!r} where its split should be 'train' or 'test'",
            where=where,
            fix="give every row its split, or take data.split out of the configuration",
        )
    return frame.filter(split == role)
