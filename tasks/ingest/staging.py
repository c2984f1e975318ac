"""Sorts rows of any number by day in bounded memory: sorted runs on disk, read back day by day."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.errors import LakeError
from tasks.ingest.rows import DAY, ROW

#: Bytes of rows held in memory before they are sorted and written as a run.
RUN_BYTES = 64 << 20
_ROW_GROUP = 65_536
_EPOCH = date(1970, 1, 1)
_PREFIX = "tailtower-ingest-"


class Scratch:
    """A folder for runs, removed at the end; what killed processes left behind is removed first."""

    def __init__(self, parent: str | None = None) -> None:
        root = Path(parent or tempfile.gettempdir())
        _remove_leftovers(root)
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
        except OSError as error:
            raise LakeError(
                f"cannot make a working folder: {error}",
                where=str(root),
                fix="name a folder with free space with --scratch",
            ) from error

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection that spills here instead of growing."""
        return duckdb.connect(
            config={
                "memory_limit": "256MB",
                "temp_directory": str(self.path / "spill"),
                "threads": str(min(4, os.cpu_count() or 1)),
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
        )


def _remove_leftovers(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Runs:
    """Rows of one table on disk, each run sorted by `__day` and `__row`."""

    folder: Path
    name: str
    run_bytes: int = RUN_BYTES
    rows_of_day: dict[date, int] = field(default_factory=dict)
    _runs: list[Path] = field(default_factory=list)
    _held: list[pa.Table] = field(default_factory=list)
    _held_bytes: int = 0

    def add(self, table: pa.Table) -> list[date]:
        """Takes rows; returns the days that had no row before. `__day` may be absent."""
        if not table.num_rows:
            return []
        fresh = []
        if DAY in table.column_names:
            counts = pc.value_counts(table[DAY].combine_chunks())
            for entry in counts.to_pylist():
                day = day_of(entry["values"])
                if day not in self.rows_of_day:
                    fresh.append(day)
                self.rows_of_day[day] = self.rows_of_day.get(day, 0) + entry["counts"]
        self._held.append(table)
        self._held_bytes += table.nbytes
        if self._held_bytes >= self.run_bytes:
            self.flush()
        return sorted(fresh)

    def flush(self) -> None:
        """Writes what is held in memory."""
        if not self._held:
            return
        table = pa.concat_tables(self._held)
        self._held, self._held_bytes = [], 0
        if DAY in table.column_names:
            table = table.sort_by([(DAY, "ascending"), (ROW, "ascending")])
        path = self.folder / f"{self.name}-{len(self._runs):05d}.parquet"
        try:
            pq.write_table(
                table, path, row_group_size=_ROW_GROUP, compression="lz4", use_dictionary=False
            )
        except OSError as error:
            raise LakeError(
                f"cannot write a working file: {error}",
                where=str(path),
                fix="name a folder with free space with --scratch",
            ) from error
        self._runs.append(path)

    def relation(self) -> str:
        """SQL for all rows; `flush` must have been called."""
        listed = ", ".join("'" + str(path).replace("'", "''") + "'" for path in self._runs)
        return f"read_parquet([{listed}])"

    def __bool__(self) -> bool:
        return bool(self._runs or self._held)


def day_of(number: int) -> date:
    """The date of a number of days since 1970."""
    return _EPOCH + timedelta(days=number)


def number_of(day: date) -> int:
    """Days since 1970."""
    return (day - _EPOCH).days


def quoted(name: str) -> str:
    """A column name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
