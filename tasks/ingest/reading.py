"""Reads all files of one table through its cleaner into sorted runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from tasks.ingest.adjacency import COLUMNS, read_adjacency
from tasks.ingest.columns import interaction_columns, side_columns
from tasks.ingest.delimited import DelimitedReader
from tasks.ingest.mapping import FileSettings, IngestMapping, SideTable
from tasks.ingest.report import TableReport
from tasks.ingest.rows import Cleaner, Column, IdType
from tasks.ingest.sources import SourceBatch, SourceFile, parquet_columns, read_parquet
from tasks.ingest.staging import Runs
from tasks.ingest.times import TimeParser
from tasks.progress import progress

_CHECK = Callable[[Cleaner, Sequence[date]], None]


@dataclass
class _Reader:
    """Reads one file: its column names, its batches, and the line of a record."""

    columns: list[str]
    read: Callable[[Sequence[str]], Iterator[SourceBatch]]
    lines_of: Callable[[Sequence[int]], dict[int, int]]


def read_interactions(
    files: Sequence[SourceFile],
    mapping: IngestMapping,
    runs: Runs,
    report: TableReport,
    check: _CHECK,
) -> Cleaner:
    """Reads the interactions; `check` is called with days that appear for the first time."""

    def columns_of(present: Sequence[str], where: str) -> list[Column]:
        if mapping.kind == "adjacency":
            user, item, moment = COLUMNS
            return [
                Column("user_id", user, "id"),
                Column("item_id", item, "id"),
                Column("timestamp", moment, "time"),
            ]
        return interaction_columns(mapping, present, where)

    return _read(files, mapping, mapping.id_type, columns_of, runs, report, check)


def read_side_table(
    files: Sequence[SourceFile],
    table: SideTable,
    key: str,
    runs: Runs,
    report: TableReport,
) -> Cleaner:
    """Reads an items or users table, whose ID column is `key`."""

    def columns_of(present: Sequence[str], where: str) -> list[Column]:
        return side_columns(table, key, present, where)

    return _read(files, table, table.id_type, columns_of, runs, report, lambda *_: None)


def _read(
    files: Sequence[SourceFile],
    settings: FileSettings,
    id_type: IdType,
    columns_of: Callable[[Sequence[str], str], list[Column]],
    runs: Runs,
    report: TableReport,
    check: _CHECK,
) -> Cleaner:
    times = TimeParser(settings.time_format, settings.timezone)
    cleaner: Cleaner | None = None
    with progress(f"read {report.dataset}", sum(file.size for file in files)) as ticker:
        for file in files:
            reader = _reader(file, settings)
            columns = columns_of(reader.columns, file.shown)
            if cleaner is None:
                cleaner = Cleaner(columns, settings.filters, settings.null_values, id_type, times)
                report.columns = {column.target: column.source for column in columns}
            else:
                cleaner.use(columns)
            for batch in reader.read(cleaner.needed):
                fresh = runs.add(cleaner.clean(batch, file.shown))
                check(cleaner, fresh)
            _name_lines(cleaner, file, reader)
            report.files.append(file.shown)
            ticker.advance(file.size)
    runs.flush()
    assert cleaner is not None, "a source has at least one file"
    tally = cleaner.tally
    report.rows_in, report.rows_out = tally.rows_in, tally.rows_out
    report.dropped, report.samples = tally.dropped, tally.samples
    report.time_rule = times.rule
    return cleaner


def _reader(file: SourceFile, settings: FileSettings) -> _Reader:
    if isinstance(settings, IngestMapping) and settings.kind == "adjacency":
        return _Reader(list(COLUMNS), lambda _: read_adjacency(file, settings), _same)
    if file.is_parquet:
        names = list(parquet_columns(file).names)
        return _Reader(names, lambda columns: read_parquet(file, columns), _same)
    text = DelimitedReader(file, settings)
    return _Reader(text.columns(), text.read, text.lines_of)


def _same(records: Sequence[int]) -> dict[int, int]:
    return {record: record for record in records}


def _name_lines(cleaner: Cleaner, file: SourceFile, reader: _Reader) -> None:
    """Turns record numbers of the samples into lines, now that the file has been read."""
    mine = [sample for sample in cleaner.tally.samples if sample.file == file.shown]
    lines = reader.lines_of([sample.row for sample in mine])
    for sample in mine:
        sample.row = lines[sample.row]
