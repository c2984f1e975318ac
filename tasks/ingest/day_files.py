"""Publishes sorted rows day by day: one query in the order of the days, cut where a day ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from tasks.ingest.publication import Action, Existing, decide, publish_day
from tasks.ingest.report import TableReport
from tasks.ingest.rows import DAY, ROW
from tasks.ingest.staging import number_of, quoted
from tasks.lake import Lake, Output, Published
from tasks.progress import progress

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_BATCH_ROWS = 65_536


@dataclass
class DayRows:
    """Rows of many days, as SQL."""

    relation: str
    """SQL for all rows, with `__day` and `__row`."""
    types: Mapping[str, pa.DataType]
    """Type of each column of the lake; times are microseconds."""
    rows_of_day: Mapping[date, int]
    """Rows of each day."""
    unique: tuple[str, ...] = ()
    """Of rows that agree in these columns only the first is written; empty to write all."""


def publish_days(
    lake: Lake,
    connection: duckdb.DuckDBPyConnection,
    rows: DayRows,
    report: TableReport,
    existing: Existing,
) -> None:
    """Publishes each day as one file sorted by time, and completes the report.

    Raises:
        DataError: A day holds other data and ``existing`` is ``refuse``; nothing was written.
    """
    days = sorted(rows.rows_of_day)
    planned = {
        day: decide(lake, report.dataset, day, source=report.digest, existing=existing)[0]
        for day in days
    }
    # Days to append to are read one by one, together with what is there.
    streamed = [day for day in days if planned[day] in ("published", "replaced")]
    stream = _Stream(connection, rows, streamed)
    actions: dict[Action, int] = {}
    repeated = 0
    with progress(f"publish {report.dataset}", len(days)) as ticker:
        for day in days:

            def write(output: Output, base: Published | None, day: date = day) -> None:
                if base is None:
                    schema, before = _schema(rows.types), 0
                    tables = stream.of(day)
                else:
                    schema, tables = _with_base(lake, connection.cursor(), rows, day, base)
                    before = base.manifest.rows
                added = _write(output, schema, tables) - before
                known = rows_by_source(base) if base is not None else {}
                output.meta["rows_by_source"] = {**known, report.digest: added}

            done = publish_day(
                lake, report.dataset, day, write, source=report.digest, existing=existing
            )
            actions[done.action] = actions.get(done.action, 0) + 1
            repeated += rows.rows_of_day[day] - rows_by_source(done.published)[report.digest]
            ticker.advance()
    if repeated:
        report.dropped["duplicate of an earlier row"] = repeated
        report.rows_out -= repeated
    report.days = days
    report.actions = actions


def rows_by_source(published: Published) -> dict[str, int]:
    """Rows that each source gave to a day."""
    recorded = published.manifest.meta.get("rows_by_source")
    return dict(recorded) if isinstance(recorded, dict) else {}


class _Stream:
    """The rows of some days in the order of the days, handed out day by day."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, rows: DayRows, days: Sequence[date]
    ) -> None:
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        if days:
            skipped = sorted(set(rows.rows_of_day) - set(days))
            where = ""
            if skipped:
                numbers = ", ".join(str(number_of(day)) for day in skipped)
                where = f" WHERE {DAY} NOT IN ({numbers})"
            query = _query(f"(SELECT * FROM {rows.relation}{where})", rows.types, rows.unique)
            # A cursor of its own: an open result ends with the next query of its connection.
            self._batches = iter(connection.cursor().sql(query).to_arrow_reader(_BATCH_ROWS))

    def of(self, day: date) -> Iterator[pa.Table]:
        """Tables of the next day, which must be `day`."""
        number = number_of(day)
        while True:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                return
            end = int(batch[DAY].to_numpy().searchsorted(number, side="right"))
            if end:
                yield pa.Table.from_batches([batch.slice(0, end)]).drop_columns([DAY])
            self._rest = batch.slice(end) if end < batch.num_rows else None
            if self._rest is not None:
                return


def _with_base(
    lake: Lake,
    connection: duckdb.DuckDBPyConnection,
    rows: DayRows,
    day: date,
    base: Published,
) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """A day's rows together with those that it holds already, which come first among equals."""
    stored = pads.dataset(
        [lake.abspath(path) for path in base.files() if path.endswith(".parquet")],
        filesystem=lake.fs,
        format="parquet",
    )
    types = {field.name: field.type for field in stored.schema} | dict(rows.types)
    connection.register("base", stored)
    micros = " REPLACE (epoch_us(timestamp) AS timestamp)" if "timestamp" in types else ""
    number = number_of(day)
    relation = (
        f"(SELECT *{micros}, {number} AS {DAY}, -1 AS {ROW} FROM base UNION ALL BY NAME "
        f"SELECT * FROM {rows.relation} WHERE {DAY} = {number})"
    )
    reader = connection.sql(_query(relation, types, rows.unique)).to_arrow_reader(_BATCH_ROWS)
    tables = (pa.Table.from_batches([batch]).drop_columns([DAY]) for batch in reader)
    return _schema(types), tables


def _query(relation: str, types: Mapping[str, pa.DataType], unique: Sequence[str]) -> str:
    # The IDs settle the order of rows that were in the lake before and have no number.
    settle = [name for name in ("user_id", "item_id") if name in types]
    order = [DAY, *(["timestamp"] if "timestamp" in types else []), ROW, *settle]
    once = ""
    if unique:
        same = ", ".join(quoted(name) for name in unique)
        once = f" QUALIFY row_number() OVER (PARTITION BY {same} ORDER BY {ROW}) = 1"
    return (
        f"SELECT {', '.join(quoted(name) for name in types)}, {DAY} FROM {relation}{once} "
        f"ORDER BY {', '.join(quoted(name) for name in order)}"
    )


def _schema(types: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema(
        [(name, _TIMESTAMP if name == "timestamp" else kind) for name, kind in types.items()]
    )


def _write(output: Output, schema: pa.Schema, tables: Iterator[pa.Table]) -> int:
    written = 0
    with (
        output.open("part-0.parquet") as stream,
        pq.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        for table in tables:
            writer.write_table(table.cast(schema))
            written += table.num_rows
    return written
