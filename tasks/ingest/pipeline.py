"""The course of an ingest: read everything, then publish day by day."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.config import digest_of
from tasks.errors import DataError
from tasks.ingest.day_files import DayRows, publish_days, rows_by_source
from tasks.ingest.mapping import IngestMapping, SideTable
from tasks.ingest.publication import Existing, decide
from tasks.ingest.reading import read_interactions, read_side_table
from tasks.ingest.report import IngestReport, TableReport
from tasks.ingest.rows import Cleaner
from tasks.ingest.side_tables import dated_rows, lake_types
from tasks.ingest.sources import SourceFile, digest_files, find_files
from tasks.ingest.staging import Runs, Scratch
from tasks.lake import Lake

INTERACTIONS = "raw/interactions"
SIDE_KEYS = {"items": "item_id", "users": "user_id"}
#: Raised when the same source and mapping would become other rows than before.
FORMAT_VERSION = 1


@dataclass
class _Source:
    """One table of the mapping with its files; `digest` names its content and mapping."""

    files: list[SourceFile]
    digest: str


class Pipeline:
    """One ingest; see `tasks.ingest.ingest` for the arguments."""

    def __init__(
        self, lake: Lake, mapping: IngestMapping, *, existing: Existing, run_bytes: int
    ) -> None:
        self._lake = lake
        self._mapping = mapping
        self._existing = existing
        self._run_bytes = run_bytes

    def run(self, source: str, scratch: str | None) -> IngestReport:
        """Ingests a source, or returns the report of the ingest that brought it in."""
        began = time.monotonic()
        main, sides = self._find(source)
        digest = digest_of([main.digest, {name: side.digest for name, side in sides.items()}])
        done = self._done(digest)
        if done is not None:
            return done.model_copy(update={"reused": True})
        with Scratch(scratch) as folder, folder.connect() as connection:
            report = self._ingest(main, sides, folder.path, connection, digest)
        report.seconds = round(time.monotonic() - began, 2)
        # Written last: with it, the same ingest again is known to have nothing to do.
        self._lake.write_text(_record_path(digest), report.model_dump_json(indent=1))
        return report

    def _find(self, source: str) -> tuple[_Source, dict[str, _Source]]:
        mapping = self._mapping
        files = find_files(source, mapping.files)
        shape = mapping.model_dump(mode="json", exclude={"items", "users", "files"})
        content = digest_files(files)
        main = _Source(files, digest_of([FORMAT_VERSION, content, shape]))
        sides = {}
        for name in SIDE_KEYS:
            table: SideTable | None = getattr(mapping, name)
            if table is None:
                continue
            if table.source is None:
                side_files, side_content = files, content
            else:
                side_files = find_files(_beside(source, table.source), table.files)
                side_content = digest_files(side_files)
            side_shape = table.model_dump(mode="json", exclude={"source", "files"})
            # The days of rows may come from the interactions, so these count as well.
            identity = [FORMAT_VERSION, side_content, side_shape, main.digest]
            sides[name] = _Source(side_files, digest_of(identity))
        return main, sides

    def _done(self, digest: str) -> IngestReport | None:
        path = _record_path(digest)
        if not self._lake.exists(path):
            return None
        report = IngestReport.model_validate_json(self._lake.read_text(path))
        for table in report.tables:
            for day in table.days:
                # Since then a day may have been removed, or replaced by other data.
                present = self._lake.partition(table.dataset, day)
                if present is None or table.digest not in rows_by_source(present):
                    return None
        return report

    def _ingest(
        self,
        main: _Source,
        sides: dict[str, _Source],
        folder: Path,
        connection: duckdb.DuckDBPyConnection,
        digest: str,
    ) -> IngestReport:
        table = TableReport(dataset=INTERACTIONS, digest=main.digest)
        runs = Runs(folder, "interactions", self._run_bytes)
        cleaner = read_interactions(
            main.files, self._mapping, runs, table, self._refuse_early(main)
        )
        if not runs:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in table.dropped.items())
            raise DataError(
                f"no row can be used: {reasons or 'the files are empty'}",
                where=", ".join(table.files[:3]),
                fix="check the mapping against the first rows of the file",
            )
        self._refuse_other_id_types(cleaner, set(runs.rows_of_day))
        users, items = _distinct(connection, runs)
        report = IngestReport(
            digest=digest, interactions=table, users=users, items=items, notes=self._notes(runs)
        )
        # Side tables first: a day of interactions promises that they are there.
        for name, source in sides.items():
            side = TableReport(dataset=f"raw/{name}", digest=source.digest)
            self._side_table(name, source, side, runs, folder, connection)
            report.side_tables.append(side)
        unique = ("user_id", "item_id", "timestamp") if self._mapping.drop_duplicates else ()
        rows = DayRows(runs.relation(), lake_types(cleaner), runs.rows_of_day, unique)
        publish_days(self._lake, connection, rows, table, self._existing)
        return report

    def _refuse_early(self, source: _Source) -> Callable[[Cleaner, Sequence[date]], None]:
        def check(_: Cleaner, days: Sequence[date]) -> None:
            for day in days:
                decide(self._lake, INTERACTIONS, day, source=source.digest, existing=self._existing)

        return check

    def _refuse_other_id_types(self, cleaner: Cleaner, days: set[date]) -> None:
        """IDs of one lake have one type; days that are about to be replaced do not count."""
        for day in reversed(self._lake.days(INTERACTIONS)):
            if self._existing == "replace" and day in days:
                continue
            present = self._lake.partition(INTERACTIONS, day)
            if present is None:
                continue
            with self._lake.open_input(present.files()[0]) as stream:
                schema = pq.read_schema(stream)
            for name in SIDE_KEYS.values():
                if _is_text(schema.field(name).type) != _is_text(cleaner.types[name]):
                    raise DataError(
                        f"the lake's {name} is {schema.field(name).type}, the source's is "
                        f"{cleaner.types[name]}",
                        where=f"{self._lake.url}/{present.path}",
                        fix="read the source with --id-type string or --id-type int",
                    )
            return

    def _notes(self, runs: Runs) -> list[str]:
        notes = []
        if self._mapping.kind == "adjacency":
            made_up = self._mapping.adjacency
            notes.append(
                "the source has no times. They are SYNTHETIC: each user's items are spread evenly "
                f"over {made_up.days} days from {made_up.first_day} in the order of the file, "
                "starting at an offset that the user's hash decides. Nothing that depends on time "
                "(trends, new items, a split by day) can be concluded from this data."
            )
        days = sorted(runs.rows_of_day)
        gaps = (days[-1] - days[0]).days + 1 - len(days)
        if gaps:
            notes.append(
                f"{gaps} of the days between {days[0]} and {days[-1]} have no interaction and get "
                "no partition; set data.allow_gaps: true in the pipeline's configuration."
            )
        return notes

    def _side_table(
        self,
        name: str,
        source: _Source,
        report: TableReport,
        interactions: Runs,
        folder: Path,
        connection: duckdb.DuckDBPyConnection,
    ) -> None:
        settings: SideTable = getattr(self._mapping, name)
        key = SIDE_KEYS[name]
        runs = Runs(folder, name, self._run_bytes)
        cleaner = read_side_table(source.files, settings, key, runs, report)
        if not runs:
            return
        rows, dropped = dated_rows(
            connection, runs, interactions, key, cleaner, settings, folder / f"{name}.parquet"
        )
        for reason, count in dropped.items():
            if count:
                report.dropped[reason] = count
                report.rows_out -= count
        publish_days(self._lake, connection, rows, report, self._existing)


def _distinct(connection: duckdb.DuckDBPyConnection, runs: Runs) -> tuple[int, int]:
    row = connection.sql(
        f"SELECT count(DISTINCT user_id), count(DISTINCT item_id) FROM {runs.relation()}"
    ).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _record_path(digest: str) -> str:
    return f"reports/ingest/{digest}.json"


def _beside(source: str, other: str) -> str:
    """Location of a side table: absolute, or relative to the folder of the interactions."""
    if "://" in other or Path(other).is_absolute():
        return other
    folder = source if "://" not in source and Path(source).is_dir() else source.rpartition("/")[0]
    return f"{folder.rstrip('/')}/{other}" if folder else other
