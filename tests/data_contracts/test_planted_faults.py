"""Each kind of bad data has one stated outcome under the shipped contract of interactions.

Protects training from bad data, and people from a wrong or missing explanation: every fault below
is planted in an otherwise good day, and exactly the stated rules break, with the stated severity
and number of rows. All days are checked in one call, as a run would.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.check import DayOfData, check_days
from data_contracts.result import ContractResult, RuleResult
from tests.data_contracts.days_of_data import (
    BIG,
    DAY,
    MIDNIGHT,
    ROWS,
    day_of,
    events,
    files_in,
    shipped,
)

#: rule, column, severity, rows
Broken = tuple[str, str, str, int]
DAY_MICROS = 86_400_000_000


def _values(good: list[object], n: int, bad: object) -> list[object]:
    return [*good[:n], bad, *good[n + 1 :]]


def _users(n: int, bad: object, first: int = 0) -> pa.Array:
    return pa.array(_values([BIG + 1 + k for k in range(first, first + ROWS)], n, bad))


def _texts(n: int, bad: object) -> pa.Array:
    return pa.array(_values([f"item {k}" for k in range(ROWS)], n, bad), pa.string())


def _at(micros: int) -> list[int | None]:
    return [*(MIDNIGHT + 10_000_000 * n for n in range(ROWS - 1)), micros]


def _weights(bad: float) -> pa.Array:
    return pa.array([bad] + [1.0] * (ROWS - 1), pa.float32())


def _truncated(folder: Path) -> DayOfData:
    day = day_of(folder, events(), events(ROWS))
    content = (folder / "1.parquet").read_bytes()
    (folder / "1.parquet").write_bytes(content[: len(content) // 2])
    return day


def _raw(content: bytes) -> Callable[[Path], DayOfData]:
    def write(folder: Path) -> DayOfData:
        day_of(folder, events())
        (folder / "1.parquet").write_bytes(content)
        return DayOfData(DAY, files_in(folder))

    return write


def _damaged_page(folder: Path) -> DayOfData:
    """The footer is whole, the values are not."""
    day = day_of(folder, events())
    content = bytearray((folder / "0.parquet").read_bytes())
    end = pq.read_metadata(folder / "0.parquet").row_group(0).column(0).total_compressed_size
    content[4 : 4 + end] = b"\xff" * end
    (folder / "0.parquet").write_bytes(bytes(content))
    return day


def _other_size(folder: Path) -> DayOfData:
    """The manifest was written for another content."""
    day = day_of(folder, events())
    (file,) = day.data.files
    stated = replace(file, bytes=os.path.getsize(file.path) + 1)
    return replace(day, data=replace(day.data, files=(stated,)))


def _same_file_twice(folder: Path) -> DayOfData:
    day = day_of(folder, events(), events())
    named = tuple(replace(file, digest="same") for file in day.data.files)
    return replace(day, data=replace(day.data, files=named))


def _rows_before(rows: int, days: int = 7) -> dict[date, int]:
    return {date(2025, 12, 31 - n): rows for n in range(days)}


GOOD: list[Broken] = []
FAULTS: dict[str, tuple[Callable[[Path], DayOfData], list[Broken]]] = {
    "good": (lambda f: day_of(f, events(), events(ROWS)), GOOD),
    "columns in another order": (
        lambda f: day_of(f, events().select(["timestamp", "item_id", "user_id"])),
        GOOD,
    ),
    "one null in an int64 id above 2**53": (
        lambda f: day_of(f, events(users=_users(7, None)), events(ROWS)),
        [("required", "user_id", "block", 1)],
    ),
    "another type in one file": (
        lambda f: day_of(
            f, events(), events(ROWS, users=pa.array([str(BIG + n) for n in range(ROWS)]))
        ),
        [("type differs between files", "user_id", "block", ROWS)],
    ),
    "a type that is not allowed": (
        lambda f: day_of(f, events(users=pa.array([float(n) for n in range(ROWS)]))),
        [("type", "user_id", "block", ROWS)],
    ),
    "times without a zone": (
        lambda f: day_of(
            f,
            events().set_column(2, "timestamp", events()["timestamp"].cast(pa.timestamp("us"))),
        ),
        [("type", "timestamp", "block", ROWS)],
    ),
    "truncated file": (_truncated, [("readable", "", "block", 0)]),
    "CSV named .parquet": (
        _raw(b"user_id,item_id,timestamp\n1,2,3\n"),
        [("readable", "", "block", 0)],
    ),
    "file of 0 bytes": (_raw(b""), [("readable", "", "block", 0)]),
    "damaged page": (_damaged_page, [("readable", "", "block", ROWS)]),
    "another size than its manifest says": (_other_size, [("readable", "", "block", 0)]),
    "no file": (day_of, [("files", "", "block", 0)]),
    "a file without rows": (
        lambda f: day_of(f, events(), events().slice(0, 0)),
        [("empty file", "", "warn", 0)],
    ),
    "a day without rows": (
        lambda f: day_of(f, events().slice(0, 0)),
        [("empty file", "", "warn", 0), ("row count", "", "block", 0)],
    ),
    "unknown column": (
        lambda f: day_of(f, events(price=pa.array([1.0] * ROWS))),
        [("unknown column", "price", "warn", ROWS)],
    ),
    "missing column": (
        lambda f: day_of(f, events().drop_columns(["item_id"])),
        [("missing column", "item_id", "block", ROWS)],
    ),
    "renamed column": (
        lambda f: day_of(f, events().rename_columns(["user_id", "itemid", "timestamp"])),
        [("missing column", "item_id", "block", ROWS), ("unknown column", "itemid", "warn", ROWS)],
    ),
    "optional column in one of two files": (
        lambda f: day_of(f, events(weight=_weights(1.0)), events(ROWS)),
        [("column in some files only", "weight", "block", ROWS)],
    ),
    "one event twice in one file": (
        lambda f: day_of(f, pa.concat_tables([events(), events().slice(3, 1)])),
        [("duplicates", "user_id, item_id, timestamp", "warn", 1)],
    ),
    "one event twice in two files": (
        lambda f: day_of(f, events(), events(ROWS), events().slice(3, 1)),
        [("duplicates", "user_id, item_id, timestamp", "warn", 1)],
    ),
    "every event twice": (
        lambda f: day_of(f, events(), events()),
        [
            ("duplicates", "user_id, item_id, timestamp", "block", ROWS),
            ("duplicates", "user_id, item_id, timestamp", "warn", ROWS),
        ],
    ),
    "the same file under two names": (
        _same_file_twice,
        [("same file twice", "", "block", ROWS)],
    ),
    "an event a second after the day": (
        lambda f: day_of(f, events(micros=_at(MIDNIGHT + DAY_MICROS + 1_000_000))),
        [("clock skew", "timestamp", "warn", 1)],
    ),
    "an event in the day's last microsecond": (
        lambda f: day_of(f, events(micros=_at(MIDNIGHT + DAY_MICROS - 1))),
        GOOD,
    ),
    "an event of another day": (
        lambda f: day_of(f, events(micros=_at(MIDNIGHT - 3_600_000_000))),
        [("inside the day", "timestamp", "block", 1)],
    ),
    "seconds where milliseconds were meant": (
        lambda f: day_of(
            f, events(micros=[(MIDNIGHT + 10_000_000 * n) // 1000 for n in range(ROWS)])
        ),
        [("inside the day", "timestamp", "block", ROWS)],
    ),
    "an empty id": (
        lambda f: day_of(f, events(items=_texts(2, ""))),
        [("length", "item_id", "block", 1), ("valid values", "item_id", "warn", 1)],
    ),
    "an id of a megabyte": (
        lambda f: day_of(f, events(items=_texts(2, "x" * 1_000_000))),
        [("length", "item_id", "block", 1)],
    ),
    "a blank at the end of an id": (
        lambda f: day_of(f, events(items=_texts(2, "item 2 "))),
        [("valid values", "item_id", "warn", 1)],
    ),
    "id 0 and a negative one": (
        lambda f: day_of(f, events(users=pa.array([0, -1, *range(2, ROWS)]))),
        GOOD,
    ),
    "ids beyond 2**63": (
        lambda f: day_of(f, events(users=pa.array([2**63 + n for n in range(ROWS)], pa.uint64()))),
        [("type", "user_id", "block", ROWS)],
    ),
    "NaN": (
        lambda f: day_of(f, events(weight=_weights(float("nan")))),
        [("range", "weight", "block", 1), ("finite", "weight", "block", 1)],
    ),
    "infinity": (
        lambda f: day_of(f, events(weight=_weights(float("inf")))),
        [("finite", "weight", "block", 1)],
    ),
    "a negative weight": (
        lambda f: day_of(f, events(weight=_weights(-0.5))),
        [("range", "weight", "block", 1)],
    ),
    "a third of the usual rows": (
        lambda f: day_of(f, events(rows=1000), trailing=_rows_before(3000)),
        [("rows against days before", "", "warn", 0)],
    ),
    "a twentieth of the usual rows": (
        lambda f: day_of(f, events(rows=150), trailing=_rows_before(3000)),
        [("rows against days before", "", "block", 0), ("rows against days before", "", "warn", 0)],
    ),
    "few rows after two days only": (
        lambda f: day_of(f, events(rows=150), trailing=_rows_before(3000, days=2)),
        GOOD,
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ContractResult]:
    root = tmp_path_factory.mktemp("faults")
    days = [write(root / str(n)) for n, (write, _) in enumerate(FAULTS.values())]
    return dict(zip(FAULTS, check_days(shipped("interactions"), days), strict=True))


@pytest.mark.parametrize("name", FAULTS)
def test_outcome(name: str, results: dict[str, ContractResult]) -> None:
    found = [(r.rule, r.column, r.severity, r.rows) for r in results[name].broken]
    expected = FAULTS[name][1]
    assert sorted(found) == sorted(expected)
    assert results[name].blocked == any(severity == "block" for _, _, severity, _ in expected)


def _only(result: ContractResult, severity: str = "block") -> RuleResult:
    (rule,) = [rule for rule in result.broken if rule.severity == severity]
    return rule


@pytest.mark.parametrize(
    ("name", "file", "found"),
    [
        ("truncated file", "1.parquet", "cut off: "),
        ("CSV named .parquet", "1.parquet", "not Parquet: starts with b'user'"),
        ("file of 0 bytes", "1.parquet", "the file has 0 bytes"),
        ("another type in one file", "1.parquet", "string"),
        ("one null in an int64 id above 2**53", "0.parquet", "1 nulls"),
        ("renamed column", "0.parquet", "no such column, but 'itemid'"),
        ("the same file under two names", "1.parquet", "content of 0.parquet"),
        ("an event of another day", "0.parquet", "1 outside"),
    ],
)
def test_the_file_and_the_finding_are_named(
    name: str, file: str, found: str, results: dict[str, ContractResult]
) -> None:
    rule = _only(results[name])
    assert rule.file == file
    assert rule.found.startswith(found)


def test_a_sample_of_the_values_is_shown(results: dict[str, ContractResult]) -> None:
    assert _only(results["an event of another day"]).sample == ("2026-01-01 23:00:00",)
    assert _only(results["an event a second after the day"], "warn").sample == (
        "2026-01-03 00:00:01",
    )
    (sample,) = _only(results["an id of a megabyte"]).sample
    assert sample.startswith("xxx")
    assert len(sample) < 60


def test_personal_values_are_hashed(results: dict[str, ContractResult]) -> None:
    user, item, moment = _only(results["one event twice in one file"], "warn").sample[0].split("/")
    assert user.startswith("#")
    assert str(BIG) not in user
    assert (item, moment[:19]) == ("item 3", "2026-01-02 00:00:30")


def test_rows_against_the_days_before_are_explained(results: dict[str, ContractResult]) -> None:
    rule = _only(results["a third of the usual rows"], "warn")
    assert rule.found == "0.333 times: 1,000 rows, usually 3,000"


def test_broken_footers_leave_the_values_unread(results: dict[str, ContractResult]) -> None:
    assert not results["truncated file"].complete
    assert results["unknown column"].complete


def test_a_result_survives_json(results: dict[str, ContractResult]) -> None:
    for result in results.values():
        assert ContractResult.model_validate_json(result.model_dump_json()) == result
