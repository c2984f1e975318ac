"""Gives rows of items and users tables the day on which they became known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa

from tasks.ingest.day_files import DayRows
from tasks.ingest.mapping import SideTable
from tasks.ingest.rows import DAY, ROW, Cleaner
from tasks.ingest.staging import Runs, day_of, number_of, quoted


def lake_types(cleaner: Cleaner) -> Mapping[str, pa.DataType]:
    """Types of the columns that go into the lake, working columns left out."""
    return {name: kind for name, kind in cleaner.types.items() if name not in (DAY, ROW)}


def dated_rows(
    connection: duckdb.DuckDBPyConnection,
    runs: Runs,
    interactions: Runs,
    key: str,
    cleaner: Cleaner,
    settings: SideTable,
    target: Path,
) -> tuple[DayRows, dict[str, int]]:
    """Dates the rows of `runs` and keeps those that say something new about their ID.

    Of several rows of one ID on one day the last one counts; a row that repeats what was known
    before is not written, since the newest row up to a day is what later steps read.

    Args:
        connection: DuckDB connection.
        runs: Rows of the side table.
        interactions: Rows of the interactions.
        key: `item_id` or `user_id`.
        cleaner: Knows the columns of the side table.
        settings: How rows without a timestamp are dated.
        target: Parquet file to write.

    Returns:
        The rows that are left, and how many were dropped for which reason.
    """
    timed = DAY in cleaner.types
    first = number_of(min(interactions.rows_of_day))
    time_order = "timestamp DESC, " if timed else ""
    seen = "NULL"
    join = ""
    if not timed and settings.known == "first_seen":
        seen = "f.day"
        join = (
            f" LEFT JOIN (SELECT CAST({key} AS VARCHAR) AS id, min({DAY}) AS day FROM "
            f"{interactions.relation()} GROUP BY 1) f ON CAST(s.{key} AS VARCHAR) = f.id"
        )
    content = [name for name in cleaner.types if name not in (key, "timestamp", DAY, ROW)]
    packed = ", ".join(f"{quoted(name)} := {quoted(name)}" for name in content)
    described = f"struct_pack({packed})" if content else "1"
    known = "" if timed else f", CAST(coalesce({seen}, {first}) AS INTEGER) AS {DAY}"
    connection.execute(
        f"CREATE TEMP TABLE dated AS SELECT s.*{known} FROM {runs.relation()} s{join}"
    )
    connection.execute(
        f"""
        CREATE TEMP TABLE last_of_day AS SELECT * FROM dated QUALIFY
        row_number() OVER (PARTITION BY {key}, {DAY} ORDER BY {time_order}{ROW} DESC) = 1
        """
    )
    path = str(target).replace("'", "''")
    connection.execute(
        f"""
        COPY (
            SELECT * FROM last_of_day WINDOW w AS (PARTITION BY {key} ORDER BY {DAY})
            QUALIFY lag({DAY}) OVER w IS NULL OR
            {described} IS DISTINCT FROM lag({described}) OVER w
            ORDER BY {DAY}, {ROW}
        ) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 65536)
        """
    )
    rows, kept = _count(connection, "dated"), _count(connection, "last_of_day")
    days = connection.sql(
        f"SELECT {DAY}, count(*) FROM read_parquet('{path}') GROUP BY 1"
    ).fetchall()
    connection.execute("DROP TABLE dated; DROP TABLE last_of_day")
    written = sum(count for _, count in days)
    rows_of_day = {day_of(number): count for number, count in days}
    dropped = {
        "followed by another row of that day": rows - kept,
        "nothing new about its ID": kept - written,
    }
    return DayRows(f"read_parquet('{path}')", lake_types(cleaner), rows_of_day), dropped


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    row = connection.sql(f"SELECT count(*) FROM {table}").fetchone()
    return int(row[0]) if row else 0
