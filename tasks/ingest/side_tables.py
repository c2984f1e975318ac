"""Gives rows of items and users tables the day on which they became known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import duckdb

from tasks.ingest.mapping import SideTable
from tasks.ingest.rows import DAY, ROW, Cleaner
from tasks.ingest.staging import Runs, day_of, quoted

_DATED = "__known"


@dataclass
class SideRows:
    """Dated rows of a side table in one file, sorted by day."""

    path: Path
    rows_of_day: dict[date, int]
    dropped: dict[str, int]

    def relation(self, day: date) -> str:
        """SQL for the rows of a day."""
        number = (day - date(1970, 1, 1)).days
        path = str(self.path).replace("'", "''")
        return (
            f"(SELECT * EXCLUDE ({_DATED}) FROM read_parquet('{path}') WHERE {_DATED} = {number})"
        )


def dated_rows(
    connection: duckdb.DuckDBPyConnection,
    runs: Runs,
    interactions: Runs,
    key: str,
    cleaner: Cleaner,
    settings: SideTable,
    target: Path,
) -> SideRows:
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
    """
    timed = DAY in cleaner.types
    first_day = min(interactions.rows_of_day)
    first = (first_day - date(1970, 1, 1)).days
    own_day = f"s.{DAY}" if timed else "NULL"
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
    connection.execute(
        f"""
        CREATE TEMP TABLE dated AS
        SELECT s.*, CAST(coalesce({own_day}, {seen}, {first}) AS INTEGER) AS {_DATED}
        FROM {runs.relation()} s{join}
        """
    )
    connection.execute(
        f"""
        CREATE TEMP TABLE last_of_day AS SELECT * FROM dated QUALIFY
        row_number() OVER (PARTITION BY {key}, {_DATED} ORDER BY {time_order}{ROW} DESC) = 1
        """
    )
    path = str(target).replace("'", "''")
    connection.execute(
        f"""
        COPY (
            SELECT * FROM last_of_day WINDOW w AS (PARTITION BY {key} ORDER BY {_DATED})
            QUALIFY lag({_DATED}) OVER w IS NULL OR
            {described} IS DISTINCT FROM lag({described}) OVER w
            ORDER BY {_DATED}, {ROW}
        ) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 65536)
        """
    )
    rows, kept = _count(connection, "dated"), _count(connection, "last_of_day")
    days = connection.sql(
        f"SELECT {_DATED}, count(*) FROM read_parquet('{path}') GROUP BY 1"
    ).fetchall()
    connection.execute("DROP TABLE dated; DROP TABLE last_of_day")
    written = sum(count for _, count in days)
    return SideRows(
        path=target,
        rows_of_day={day_of(number): count for number, count in days},
        dropped={
            "followed by another row of that day": rows - kept,
            "nothing new about its ID": kept - written,
        },
    )


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    row = connection.sql(f"SELECT count(*) FROM {table}").fetchone()
    return int(row[0]) if row else 0
