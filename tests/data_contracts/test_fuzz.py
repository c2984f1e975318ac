"""Random corruptions of a good day: never an exception, never a silent pass of forbidden values.

Whether a corrupted day may pass is decided by an oracle that reads the files with Arrow and looks
at every value in plain Python, knowing nothing of the checks. With a manifest, every change of
content is found, whatever it does to the values.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.check import DayOfData, check_days
from tests.data_contracts.days_of_data import DAY, MIDNIGHT, files_in, shipped

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(1800)]
CORRUPTIONS = 500
ROWS = 50
SKEW = timedelta(minutes=5)
Corruption = Callable[[Path], None]


def _good(first: int) -> pa.Table:
    numbers = range(first, first + ROWS)
    return pa.table(
        {
            "user_id": [f"user {n % 17}" for n in numbers],
            "item_id": [f"item {n}" for n in numbers],
            "timestamp": pa.array([MIDNIGHT + n * 1_000_000 for n in numbers]).cast(
                pa.timestamp("us", tz="UTC")
            ),
            "weight": pa.array([1.0 + n / 10 for n in numbers], pa.float32()),
        }
    )


def _flip(changes: list[tuple[float, int]]) -> Corruption:
    def corrupt(path: Path) -> None:
        content = bytearray(path.read_bytes())
        for place, mask in changes:
            content[int(place * len(content))] ^= mask
        path.write_bytes(bytes(content))

    return corrupt


def _cut(share: float) -> Corruption:
    def corrupt(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return corrupt


def _retype(column: str, kind: pa.DataType) -> Corruption:
    def corrupt(path: Path) -> None:
        table = pq.read_table(path)
        numbers = pa.array(range(len(table)))
        values = pa.nulls(len(table), kind) if pa.types.is_null(kind) else numbers.cast(kind)
        place = table.schema.get_field_index(column)
        pq.write_table(table.set_column(place, column, values), path)

    return corrupt


def _columns(names: list[str]) -> Corruption:
    def corrupt(path: Path) -> None:
        pq.write_table(pq.read_table(path).select(names), path)

    return corrupt


def _shuffle(column: str, seed: int) -> Corruption:
    """Values of one column in another order: other events, of the same kind."""

    def corrupt(path: Path) -> None:
        table = pq.read_table(path)
        order = list(range(len(table)))
        random.Random(seed).shuffle(order)
        place = table.schema.get_field_index(column)
        pq.write_table(table.set_column(place, column, table[column].take(order)), path)

    return corrupt


def _set(column: str, row: int, value: object) -> Corruption:
    def corrupt(path: Path) -> None:
        table = pq.read_table(path)
        values = table[column].to_pylist()
        values[row] = value
        place = table.schema.get_field_index(column)
        changed = pa.array(values, table.schema.field(column).type)
        pq.write_table(table.set_column(place, column, changed), path)

    return corrupt


_NAMES = ["user_id", "item_id", "timestamp", "weight"]
_START = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC)
_ROWS = st.integers(0, ROWS - 1)
_TEXTS = st.one_of(
    st.none(), st.sampled_from(["", "x" * 256, "x" * 257, " a", "e\u0301"]), st.text(max_size=3)
).filter(lambda text: text is None or text.isprintable() or text == "")
_MOMENTS = st.integers(-40, 40).map(lambda quarters: _START + timedelta(minutes=45 * quarters))
_WEIGHTS = st.one_of(st.none(), st.floats(width=32), st.floats(0, 10, width=32))
_KINDS = [pa.int64(), pa.float64(), pa.string(), pa.null(), pa.timestamp("us", tz="UTC"), pa.int8()]
corruptions = st.one_of(
    st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), min_size=1, max_size=8).map(
        _flip
    ),
    st.floats(0, 0.999).map(_cut),
    st.builds(_retype, st.sampled_from(_NAMES), st.sampled_from(_KINDS)),
    st.permutations(_NAMES).flatmap(lambda p: st.integers(1, 4).map(lambda n: _columns(p[:n]))),
    st.builds(_shuffle, st.sampled_from(_NAMES), st.integers(0, 99)),
    st.builds(_set, st.sampled_from(["user_id", "item_id"]), _ROWS, _TEXTS),
    st.builds(_set, st.just("timestamp"), _ROWS, st.one_of(st.none(), _MOMENTS)),
    st.builds(_set, st.just("weight"), _ROWS, _WEIGHTS),
)


def _forbidden(folder: Path) -> str | None:
    """The first thing that the shipped contract forbids, by a look at every value."""
    kinds: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            table = pq.read_table(path, partitioning=None)
            table.validate(full=True)
            rows = table.to_pylist()
        except Exception as error:
            return f"{path.name}: {error}"
        for field in table.schema:
            kinds.setdefault(field.name, set()).add(str(field.type))
        wrong = _wrong_types(table.schema) or next(filter(None, map(_wrong_value, rows)), None)
        if wrong:
            return f"{path.name}: {wrong}"
    return next((f"{name}: {found}" for name, found in kinds.items() if len(found) > 1), None)


def _wrong_types(schema: pa.Schema) -> str | None:
    allowed = {
        "user_id": {"string", "int64"},
        "item_id": {"string", "int64"},
        "timestamp": {"timestamp[us, tz=UTC]"},
    }
    for name, kinds in allowed.items():
        if name not in schema.names or str(schema.field(name).type) not in kinds:
            return f"type of {name}"
    if "weight" in schema.names and str(schema.field("weight").type) not in ("float", "double"):
        return "type of weight"
    return None


def _wrong_value(row: dict[str, object]) -> str | None:
    for name in ("user_id", "item_id"):
        value = row[name]
        if value is None or (isinstance(value, str) and not 1 <= len(value) <= 256):
            return f"{name} {value!r}"
    moment = row["timestamp"]
    if not isinstance(moment, datetime):
        return "no time"
    if not _START - SKEW <= moment < _START + timedelta(days=1) + SKEW:
        return f"time {moment}"
    weight = row.get("weight")
    if isinstance(weight, float) and not (math.isfinite(weight) and weight >= 0):
        return f"weight {weight}"
    return None


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    for n in range(2):
        pq.write_table(_good(n * ROWS), folder / f"{n}.parquet")
    assert _forbidden(folder) is None
    assert not check_days(shipped("interactions"), [DayOfData(DAY, files_in(folder))])[0].broken
    return folder


@settings(
    max_examples=CORRUPTIONS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(corrupt=corruptions)
def test_corrupted_days(
    corrupt: Corruption, good: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("corrupted")
    for path in good.iterdir():
        shutil.copy(path, folder)
    before = files_in(folder)
    stated = replace(
        before, files=tuple(replace(file, digest=before.digest(file)) for file in before.files)
    )
    changed = folder / "1.parquet"
    content = changed.read_bytes()
    corrupt(changed)
    days = [DayOfData(DAY, files_in(folder)), DayOfData(DAY, stated)]
    plain, with_manifest = check_days(shipped("interactions"), days)
    forbidden = _forbidden(folder)
    if forbidden is not None:
        assert plain.blocked, f"passed, though forbidden: {forbidden}"
    if changed.read_bytes() != content:
        assert with_manifest.blocked
    shutil.rmtree(folder)
