"""Turns source rows into the lake's rows and counts the reason for each row that is dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import polars as pl
import pyarrow as pa

from tasks.errors import ConfigError, DataError
from tasks.ingest.mapping import LISTED, NUMERIC, DropRule
from tasks.ingest.report import SAMPLES, RejectedRow
from tasks.ingest.sources import MalformedRow, SourceBatch
from tasks.ingest.times import EARLIEST_US, LATEST_US, TimeParser

#: Working columns of staged rows: day since 1970, and position in the whole source.
DAY, ROW = "__day", "__row"
DAY_US = 86_400_000_000
_WHOLE_NUMBER = r"^\s*[+-]?\d+(\.0+)?\s*$"
_LARGEST_EXACT_FLOAT = 2.0**53

IdType = Literal["auto", "string", "int"]
Kind = Literal["id", "time", "weight", "list", "string", "int", "float", "as_is"]


@dataclass(frozen=True)
class Column:
    """One column of the lake and where it comes from."""

    target: str
    source: str
    kind: Kind
    required: bool = False
    separator: str = ""


@dataclass
class Tally:
    """Rows in and out, and the dropped ones by reason with a few examples."""

    rows_in: int = 0
    rows_out: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    samples: list[RejectedRow] = field(default_factory=list)

    def drop(self, reason: str, count: int, examples: Callable[[int], list[RejectedRow]]) -> None:
        """Counts rows; `examples(n)` is asked for up to n of them while there are few."""
        if not count:
            return
        before = self.dropped.get(reason, 0)
        self.dropped[reason] = before + count
        if before < SAMPLES:
            self.samples += examples(SAMPLES - before)


class Cleaner:
    """Cleans batches of one table; types are fixed by the first batch and kept for all others.

    Args:
        columns: The columns to make. At most one has the kind `time`.
        filters: Rules that drop rows.
        null_values: Texts of text files that mean a missing value.
        id_type: Type of the ID columns.
        times: Reads the column of the kind `time`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        filters: Sequence[DropRule],
        null_values: Sequence[str],
        id_type: IdType,
        times: TimeParser,
    ) -> None:
        self._columns = columns
        self._filters = filters
        self._null_values = list(null_values)
        self._id_type = id_type
        self._times = times
        self._types: dict[str, pa.DataType] = {}
        self._next_row = 0
        self.tally = Tally()

    @property
    def needed(self) -> list[str]:
        """Source columns that must be read."""
        names = [column.source for column in self._columns]
        return list(dict.fromkeys([*names, *(rule.column for rule in self._filters)]))

    def use(self, columns: Sequence[Column]) -> None:
        """Takes the columns of another file, which may be named differently there."""
        self._columns = columns

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Type of each column of the lake; known after the first batch."""
        return self._types

    def clean(self, batch: SourceBatch, file: str) -> pa.Table:
        """The good rows, with `__row` and, when there is a time, `__day`.

        Raises:
            DataError: A column cannot be what it is mapped to.
        """
        frame = pl.DataFrame(pl.from_arrow(batch.table))
        if batch.is_text:
            missing = pl.col(pl.String).is_in(self._null_values)
            frame = frame.with_columns(pl.when(~missing).then(pl.col(pl.String)).name.keep())
        frame = frame.with_columns(pl.col(pl.Categorical).cast(pl.String))
        self.tally.rows_in += frame.height + len(batch.malformed)
        for row in batch.malformed:
            self._drop_malformed(row, file)
        keep = _Keep(frame, batch, file, self.tally)
        made = {column.target: self._make(column, frame, keep) for column in self._columns}
        for rule in self._filters:
            _apply(rule, frame[rule.column], keep)
        return self._finish(made, keep)

    def _drop_malformed(self, row: MalformedRow, file: str) -> None:
        example = RejectedRow(
            file=file, row=row.record, reason=row.reason, values={"text": row.text}
        )
        self.tally.drop(row.reason, 1, lambda _: [example])

    def _make(self, column: Column, frame: pl.DataFrame, keep: _Keep) -> pl.Series:
        given, name = frame[column.source], column.target
        where = f"{keep.file} column {column.source}"
        if column.kind == "id":
            made = _id_values(given, self._id_type, where)
            absent = given.is_null() | _is_nan(given)
            if given.dtype == pl.String:
                absent |= given.str.strip_chars() == ""
            keep.drop(absent, f"{name} missing")
            keep.drop(made.is_null(), f"{name} is no whole number")
            return made
        if column.kind == "time":
            made = self._times.parse(given, where)
            keep.drop(given.is_null(), f"{name} missing")
            keep.drop(made.is_null(), f"{name} is no time")
            keep.drop((made < EARLIEST_US) | (made >= LATEST_US), f"{name} not in 1970 to 2099")
            return made
        if column.kind == "weight":
            made = _cast(given, pl.Float32, where)
            keep.drop(given.is_null(), f"{name} missing")
            good = made.is_not_null() & made.is_finite() & (made >= 0)
            keep.drop(~good, f"{name} is no number from 0")
            return made
        made = _attribute(column, given, where)
        if column.kind in ("int", "float"):
            keep.drop(given.is_not_null() & made.is_null(), f"{name} is no {column.kind}")
        return made

    def _finish(self, made: dict[str, pl.Series], keep: _Keep) -> pa.Table:
        rows = pl.int_range(self._next_row, self._next_row + len(keep.mask), eager=True)
        self._next_row += len(keep.mask)
        frame = pl.DataFrame({**made, ROW: rows}).filter(keep.mask)
        for column in self._columns:
            if column.kind == "time":
                day = pl.col(column.target).floordiv(DAY_US).cast(pl.Int32)
                frame = frame.with_columns(day.alias(DAY))
        self.tally.rows_out += frame.height
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
        return self._fixed_types(table, keep.file)

    def _fixed_types(self, table: pa.Table, file: str) -> pa.Table:
        """Casts to the types of the first batch, so that all files agree."""
        columns = []
        for name, column in zip(table.column_names, table.columns, strict=True):
            wanted = self._types.get(name)
            if wanted is None or (pa.types.is_null(wanted) and len(column)):
                wanted = _plain(column.type)
                self._types[name] = wanted
            if name.endswith("_id") and pa.types.is_string(wanted) != pa.types.is_string(
                _plain(column.type)
            ):
                raise DataError(
                    f"{name} is {wanted} in the files before and {_plain(column.type)} here",
                    where=file,
                    fix="read both alike with --id-type string or --id-type int",
                )
            try:
                columns.append(column.cast(wanted))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise DataError(
                    f"column {name} is {wanted} in the files before: {error}",
                    where=file,
                    fix="give the files one type, or leave the column out of the mapping",
                ) from error
        return pa.table(columns, names=table.column_names)


class _Keep:
    """Which rows of a batch are still good; a row is dropped once, for the first reason."""

    def __init__(self, frame: pl.DataFrame, batch: SourceBatch, file: str, tally: Tally) -> None:
        self._frame = frame
        self._batch = batch
        self._tally = tally
        self.file = file
        self.mask = pl.repeat(True, frame.height, dtype=pl.Boolean, eager=True)

    def drop(self, condition: pl.Series, reason: str) -> None:
        bad = condition.fill_null(False) & self.mask
        count = int(bad.sum())
        if not count:
            return

        def examples(limit: int) -> list[RejectedRow]:
            return [
                RejectedRow(
                    file=self.file,
                    row=int(self._batch.records[index]),
                    reason=reason,
                    values=_shown(self._frame.row(index, named=True)),
                )
                for index in bad.arg_true().head(limit).to_list()
            ]

        self._tally.drop(reason, count, examples)
        self.mask &= ~bad


def _shown(values: dict[str, object]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in values.items()}


def _id_values(given: pl.Series, id_type: IdType, where: str) -> pl.Series:
    """The IDs as text or Int64; null where a whole number is wanted and there is none."""
    dtype = given.dtype
    if dtype == pl.String:
        if id_type != "int":
            return given
        whole = pl.select(pl.when(given.str.contains(_WHOLE_NUMBER)).then(given)).to_series()
        return whole.str.strip_chars().str.replace(r"\.0+$", "").cast(pl.Int64, strict=False)
    if dtype.is_integer():
        numbers = given.cast(pl.Int64, strict=False)
    elif dtype.is_float() or dtype.is_decimal():
        floats = given.cast(pl.Float64)
        whole = (floats == floats.floor()) & (floats.abs() <= _LARGEST_EXACT_FLOAT)
        numbers = pl.select(pl.when(whole).then(floats)).to_series().cast(pl.Int64, strict=False)
    elif dtype == pl.Null:
        numbers = given.cast(pl.Int64)
    else:
        raise DataError(
            f"a column of type {dtype} cannot be an ID", where=where, fix="map another column"
        )
    return numbers.cast(pl.String) if id_type == "string" else numbers


def _attribute(column: Column, given: pl.Series, where: str) -> pl.Series:
    if column.kind == "list":
        if isinstance(given.dtype, pl.List):
            return given.cast(pl.List(pl.String))
        parts = given.cast(pl.String).str.split(column.separator)
        return pl.select(
            parts.list.eval(pl.element().str.strip_chars()).list.filter(pl.element() != "")
        ).to_series()
    if column.kind == "string":
        return given.cast(pl.String)
    if column.kind in ("int", "float"):
        return _cast(given, pl.Int64 if column.kind == "int" else pl.Float64, where)
    return given


def _cast(given: pl.Series, dtype: type[pl.DataType], where: str) -> pl.Series:
    if given.dtype == pl.String:
        given = given.str.strip_chars()
    try:
        return given.cast(dtype, strict=False)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"a column of type {given.dtype} holds no numbers", where=where, fix="map another"
        ) from error


def _apply(rule: DropRule, given: pl.Series, keep: _Keep) -> None:
    name = f"rule: {rule.name}"
    if rule.drop_if == "missing":
        keep.drop(given.is_null() | _is_nan(given), name)
        return
    if rule.drop_if in NUMERIC:
        numbers = _cast(given, pl.Float64, f"{keep.file} column {rule.column}")
        keep.drop(given.is_not_null() & numbers.is_null(), f"{name} (not a number)")
        bound = float(str(rule.value))
        keep.drop(
            {
                "less_than": numbers < bound,
                "at_most": numbers <= bound,
                "greater_than": numbers > bound,
                "at_least": numbers >= bound,
            }[rule.drop_if],
            name,
        )
        return
    texts = given if given.dtype == pl.String else _id_like_text(given)
    if rule.drop_if in LISTED:
        wanted = list(rule.value) if isinstance(rule.value, tuple) else []
        found = texts.is_in(wanted)
        keep.drop(found if rule.drop_if == "in" else ~found, name)
        return
    value = str(rule.value)
    if rule.drop_if == "starts_with":
        keep.drop(texts.str.starts_with(value), name)
    elif rule.drop_if == "matches":
        try:
            keep.drop(texts.str.contains(value), name)
        except pl.exceptions.ComputeError as error:
            raise ConfigError(
                f"rule '{rule.name}': this kind of regular expression is not supported",
                where=f"pattern {value}",
                fix="write it without look-around and back-references",
            ) from error
    else:
        keep.drop(texts == value if rule.drop_if == "equals" else texts != value, name)


def _id_like_text(given: pl.Series) -> pl.Series:
    """Texts to compare with: 5.0 reads `5`, as a person would write it."""
    texts = given.cast(pl.String)
    return texts.str.replace(r"\.0$", "") if given.dtype.is_float() else texts


def _is_nan(given: pl.Series) -> pl.Series:
    if given.dtype.is_float():
        return given.is_nan()
    return pl.repeat(False, len(given), dtype=pl.Boolean, eager=True)


def _plain(dtype: pa.DataType) -> pa.DataType:
    """The type without the large variants, which other readers of the lake need not know."""
    if pa.types.is_large_string(dtype):
        return pa.string()
    if pa.types.is_large_list(dtype) or pa.types.is_list(dtype):
        return pa.list_(_plain(dtype.value_type))
    if pa.types.is_large_binary(dtype):
        return pa.binary()
    return dtype
