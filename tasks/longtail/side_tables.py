"""The newest attributes of each user and item as of a day."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from tasks.errors import DataError
from tasks.lake import Lake
from tasks.longtail.columns import collect, id_or_nothing, read_schema, scan
from tasks.longtail.features import FeaturePlan
from tasks.longtail.numbers import check_finite, check_numbers

TITLE = "title"


def newest_rows(
    lake: Lake,
    dataset: str,
    files: Sequence[str],
    key: str,
    features: Sequence[FeaturePlan],
    *,
    title: bool = False,
) -> pl.DataFrame:
    """One row for each ID of a side table: the newest.

    Args:
        lake: The lake.
        dataset: Name of the side table, for messages.
        files: Its files, oldest day first, by name within a day; a later row replaces an
            earlier one.
        key: Column of the IDs.
        features: Features of the tower; their attribute columns are read.
        title: Whether the optional column `title` is read; null where it is absent.

    Returns:
        `key`, `title` when asked for, and the attribute columns; features of kind `list` are
        lists.

    Raises:
        DataError: There is no file, or a column is missing or of the wrong kind.
    """
    check_delivered(lake, dataset, files, features)
    frames = [read_rows(lake, dataset, path, key, features, title=title) for path in files]
    check_schemas(lake, dataset, files, [frame.schema for frame in frames])
    return newest_of(frames, key)


def newest_of(frames: Sequence[pl.DataFrame], key: str) -> pl.DataFrame:
    """The last row of each ID, from the rows of files in the order of their days."""
    # Relaxed: a file whose column has Arrow's null type takes the type of the others.
    together = pl.concat(frames, how="vertical_relaxed")
    return together.unique(key, keep="last", maintain_order=True)


def check_delivered(
    lake: Lake, dataset: str, files: Sequence[str], features: Sequence[FeaturePlan]
) -> None:
    """Checks that a side table is there.

    Raises:
        DataError: It is not.
    """
    if not files:
        wanted = sorted({plan.column for plan in features if plan.source == "attribute"})
        raise DataError(
            f"the lake has no raw/{dataset} that the model's features could be read from",
            where=f"{lake.url}/raw/{dataset}, features {', '.join(wanted)}",
            fix=f"deliver raw/{dataset}, or take the features out of the model",
        )


def check_schemas(
    lake: Lake, dataset: str, files: Sequence[str], schemas: Sequence[pl.Schema]
) -> None:
    """Checks that all files of a side table have the same types.

    A column without any value, of Arrow's null type, fits every other.

    Raises:
        DataError: They have not.
    """
    known: dict[str, pl.DataType] = {}
    for path, schema in zip(files, schemas, strict=True):
        for column, dtype in schema.items():
            if _holds_nothing(dtype):
                continue
            if known.setdefault(column, dtype) != dtype:
                raise DataError(
                    f"raw/{dataset} changed the type of column '{column}': {dtype} after "
                    f"{known[column]}",
                    where=f"{lake.url}/{path}",
                    fix="deliver all days with one type",
                )


def _holds_nothing(dtype: pl.DataType) -> bool:
    return dtype == pl.Null or dtype == pl.List(pl.Null)


def read_rows(
    lake: Lake,
    dataset: str,
    path: str,
    key: str,
    features: Sequence[FeaturePlan],
    *,
    title: bool = False,
) -> pl.DataFrame:
    """The rows of one file of a side table, in the columns of `newest_rows`.

    Raises:
        DataError: A column is missing or of the wrong kind.
    """
    wanted = {plan.column: plan for plan in features if plan.source == "attribute"}
    schema = read_schema(lake, path).schema.to_arrow_schema()
    where = f"{lake.url}/{path} (data set raw/{dataset})"
    columns = [key, *wanted]
    key_type, key_listed = id_or_nothing(schema, key, where)
    if key_listed:
        raise DataError(f"column '{key}' holds lists", where=where, fix="deliver one ID a row")
    picked = [pl.col(key).cast(key_type)]
    if title:
        picked.append(_title(schema, where))
        if TITLE in schema.names and TITLE not in columns:
            columns.append(TITLE)
    for column, plan in wanted.items():
        if plan.numeric:
            check_numbers(schema, column, where)
            picked.append(pl.col(column).cast(pl.Float64))
            continue
        dtype, listed = id_or_nothing(schema, column, where)
        value = pl.col(column)
        if listed and not plan.listed:
            raise DataError(
                f"column '{column}' holds lists, but feature '{plan.name}' is of kind id",
                where=where,
                fix=f"set `kind: list` for feature '{plan.name}'",
            )
        if listed:
            value = value.cast(pl.List(dtype))
        elif plan.listed:
            single = pl.concat_list(value.cast(dtype))
            value = pl.when(value.is_null()).then(None).otherwise(single).alias(column)
        else:
            value = value.cast(dtype)
        picked.append(value)
    query = scan(lake, path, columns).select(picked).filter(pl.col(key).is_not_null())
    rows = collect(lake, path, [query])[0]
    for column in (plan.column for plan in wanted.values() if plan.numeric):
        check_finite(rows, key, column, where)
    return rows


def _title(schema: pa.Schema, where: str) -> pl.Expr:
    if TITLE not in schema.names:
        return pl.lit(None, pl.String).alias(TITLE)
    if id_or_nothing(schema, TITLE, where)[0] not in (pl.String(), pl.Null()):
        raise DataError("column 'title' is no text", where=where, fix="deliver it as string")
    return pl.col(TITLE).cast(pl.String)
