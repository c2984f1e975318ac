"""Writers of the days that `outcomes` lists: a good day, with one thing wrong or odd."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tasks.lake import Lake
from tests.data_contracts.days_of_data import (
    BIG,
    CONTRACTS,
    DAY,
    DAY_MICROS,
    MIDNIGHT,
    ROWS,
    events,
)

#: Writes a day's folder, given its path.
Writer = Callable[[Path], None]


def deliver(folder: Path, *tables: pa.Table, names: tuple[str, ...] = ()) -> None:
    """Writes a day's files, `0.parquet` and so on, and the marker after them."""
    folder.mkdir(parents=True, exist_ok=True)
    for n, table in enumerate(tables):
        pq.write_table(table, folder / (names[n] if names else f"{n}.parquet"))
    (folder / "_SUCCESS").touch()


def contracts_for_tests(folder: Path) -> Path:
    """The shipped contracts, with attributes of items that a shop would add."""
    for path in CONTRACTS.glob("*.odcs.yaml"):
        shutil.copy(path, folder)
    path = folder / "items.odcs.yaml"
    content = yaml.safe_load(path.read_text())
    content["schema"][0]["properties"] += yaml.safe_load(_ATTRIBUTES)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


_ATTRIBUTES = """
- name: tags
  logicalType: array
  items: {logicalType: string, required: true}
  logicalTypeOptions: {minItems: 1, maxItems: 1000}
  customProperties: [{property: mayBeAbsent, value: true}]
  required: true
- name: price
  logicalType: number
  customProperties: [{property: mayBeAbsent, value: true}]
  quality:
    - {type: custom, engine: tailtower, implementation: finite}
"""


def files(*tables: pa.Table) -> Writer:
    return lambda folder: deliver(folder, *tables)


def _replaced(good: list[object], n: int, bad: object) -> list[object]:
    return [*good[:n], bad, *good[n + 1 :]]


def users(n: int, bad: object, first: int = 0) -> pa.Array:
    return pa.array(_replaced([BIG + 1 + k for k in range(first, first + ROWS)], n, bad))


def texts(*bad: object) -> pa.Array:
    """IDs of items, the first ones replaced."""
    return pa.array([*bad, *(f"item {k}" for k in range(len(bad), ROWS))], pa.string())


def last_at(micros: int) -> list[int | None]:
    return [*(MIDNIGHT + 10_000_000 * n for n in range(ROWS - 1)), micros]


def weights(bad: float | None) -> pa.Array:
    return pa.array([bad] + [1.0] * (ROWS - 1), pa.float32())


def items(**columns: pa.Array) -> pa.Table:
    return pa.table({"item_id": [f"item {n}" for n in range(ROWS)], **columns})


def items_with_tags(bad: object) -> Writer:
    tags = pa.array([bad, *([["red", "small"]] * (ROWS - 1))], pa.list_(pa.string()))
    return files(items(tags=tags))


def with_type(table: pa.Table, column: str, kind: pa.DataType) -> pa.Table:
    return table.set_column(
        table.schema.get_field_index(column), column, table[column].cast(kind, safe=False)
    )


def second_file_of(content: bytes) -> Writer:
    def write(folder: Path) -> None:
        deliver(folder, events())
        (folder / "1.parquet").write_bytes(content)

    return write


def half_a_file(folder: Path) -> None:
    deliver(folder, events(), events(ROWS))
    content = (folder / "1.parquet").read_bytes()
    (folder / "1.parquet").write_bytes(content[: len(content) // 2])


def damaged_page(folder: Path) -> None:
    """The footer is whole, the values are not."""
    deliver(folder, events())
    content = bytearray((folder / "0.parquet").read_bytes())
    end = pq.read_metadata(folder / "0.parquet").row_group(0).column(0).total_compressed_size
    content[4 : 4 + end] = b"\xff" * end
    (folder / "0.parquet").write_bytes(bytes(content))


def with_manifest(change: Writer) -> Writer:
    """A day whose manifest states its content before the change."""

    def write(folder: Path) -> None:
        deliver(folder)
        # Stored as they are, so that a changed byte is another user and nothing else.
        pq.write_table(events(), folder / "0.parquet", use_dictionary=False, compression="none")
        lake = Lake(str(folder.parent.parent.parent))
        published = lake.partition(f"raw/{folder.parent.name}", DAY)
        assert published is not None
        (folder / "manifest.json").write_text(published.manifest.model_dump_json())
        change(folder)

    return write


def change_a_user(folder: Path) -> None:
    content = bytearray((folder / "0.parquet").read_bytes())
    place = content.find((BIG + 7).to_bytes(8, "little"))
    assert place > 0
    content[place] ^= 0x40
    (folder / "0.parquet").write_bytes(bytes(content))


def lengthen(folder: Path) -> None:
    pq.write_table(events(rows=ROWS + 100), folder / "0.parquet")


def extra_file(*names: str) -> Writer:
    def write(folder: Path) -> None:
        deliver(folder, events())
        for name in names:
            (folder / name).write_bytes(b"PAR1 half of it")

    return write


def only_a_folder(folder: Path) -> None:
    folder.mkdir(parents=True)


def compact_name(folder: Path) -> None:
    deliver(folder, events())
    deliver(folder.parent / "dt=20260101", events())


def _catalogue(rows: int) -> pa.Array:
    """IDs of the same few items, whatever the number of rows."""
    return pa.array([f"item {n % 500}" for n in range(rows)])


def after_days(days: int, rows: int, today: int) -> Writer:
    """A day after others; all have the given rows."""

    def write(folder: Path) -> None:
        for n in range(1, days + 1):
            before = DAY - timedelta(n)
            moved = [t - n * DAY_MICROS for t in even_times(rows)]
            known = events(rows=rows, micros=moved, items=_catalogue(rows))
            deliver(folder.parent / f"dt={before}", known)
        deliver(folder, events(rows=today, items=_catalogue(today)))

    return write


def even_times(rows: int) -> list[int]:
    return [MIDNIGHT + n * (DAY_MICROS // rows) for n in range(rows)]


def trailing_days(folder: Path) -> list[date]:
    """Days delivered before the one in a folder."""
    days = [date.fromisoformat(path.name[3:]) for path in folder.parent.glob("dt=????-??-??")]
    return sorted(day for day in days if day < DAY)
