"""Days of data written for tests: a good one, and its parts to spoil."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import data_contracts
from data_contracts.check import DayOfData
from data_contracts.contract import Contract, load_contract
from data_contracts.data_files import DataFile, DataFiles

DAY = date(2026, 1, 2)
MIDNIGHT = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp()) * 1_000_000
DAY_MICROS = 86_400_000_000
ROWS = 40
#: Above this, a float can no longer tell two integers apart.
BIG = 2**53
CONTRACTS = Path(data_contracts.__file__).parent


def shipped(name: str) -> Contract:
    return load_contract(CONTRACTS / f"{name}.odcs.yaml")


def events(
    first: int = 0,
    *,
    rows: int = ROWS,
    users: list[object] | pa.Array | None = None,
    items: list[object] | pa.Array | None = None,
    micros: Sequence[int | None] | None = None,
    **more: pa.Array,
) -> pa.Table:
    """Good events, evenly from the day's start on; any column may be replaced."""
    numbers = range(first, first + rows)
    step = min(10_000_000, DAY_MICROS // (first + rows))
    times = micros if micros is not None else [MIDNIGHT + step * n for n in numbers]
    return pa.table(
        {
            "user_id": pa.array([BIG + 1 + n for n in numbers]) if users is None else users,
            "item_id": pa.array([f"item {n}" for n in numbers]) if items is None else items,
            "timestamp": pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            **more,
        }
    )


def files_in(folder: Path, fs: pafs.FileSystem | None = None) -> DataFiles:
    files = tuple(DataFile(path.name, str(path)) for path in sorted(folder.glob("*.parquet")))
    return DataFiles(fs or pafs.LocalFileSystem(), files)


def day_of(folder: Path, *tables: pa.Table, **more: object) -> DayOfData:
    """Writes tables as files `0.parquet`, `1.parquet` … and describes them as one day."""
    folder.mkdir(parents=True, exist_ok=True)
    for n, table in enumerate(tables):
        pq.write_table(table, folder / f"{n}.parquet")
    return DayOfData(DAY, files_in(folder), **more)  # type: ignore[arg-type]
