"""Builds small raw lakes and runs the data steps on them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.config import PipelineConfig
from tasks.lake import Lake
from tasks.run_spec import RunSpec, StepResult

DAY1 = date(2026, 3, 1)
US = 1_000_000

TABLES: dict[str, Any] = {
    "user": {"source": "interactions.user_id", "vocabulary": {"min_count": 3, "tail_buckets": 4}},
    "item": {"source": "interactions.item_id", "vocabulary": {"min_count": 3, "tail_buckets": 5}},
}
MODEL: dict[str, Any] = {
    "user": {
        "features": [
            {"name": "uid", "table": "user"},
            {"name": "history", "table": "item", "kind": "history", "max_length": 4},
        ]
    },
    "item": {"features": [{"name": "iid", "table": "item"}]},
}


def day_of(number: int) -> date:
    """Day 1, 2, … of the lake."""
    return DAY1 + timedelta(days=number - 1)


def at(number: int, second: float = 0.0) -> datetime:
    """An instant of day `number`."""
    midnight = datetime.combine(day_of(number), datetime.min.time(), UTC)
    return midnight + timedelta(seconds=second)


def write_partition(
    lake: Path, dataset: str, number: int, files: Mapping[str, pa.Table] | pa.Table
) -> None:
    """Writes a complete raw partition, marked by `_SUCCESS`."""
    folder = lake / "raw" / dataset / f"dt={day_of(number)}"
    folder.mkdir(parents=True, exist_ok=True)
    tables = files if isinstance(files, Mapping) else {"a.parquet": files}
    for name, table in tables.items():
        pq.write_table(table, folder / name)
    (folder / "_SUCCESS").touch()


def events(rows: Sequence[tuple[Any, Any, datetime]], **columns: Any) -> pa.Table:
    """Interactions of (user, item, time)."""
    users, items, times = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "user_id": pa.array(users) if rows else pa.array([], pa.string()),
            "item_id": pa.array(items) if rows else pa.array([], pa.string()),
            "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
            **columns,
        }
    )


def spec_of(
    lake: Path,
    number: int,
    *,
    tables: Mapping[str, Any] = TABLES,
    model: Mapping[str, Any] = MODEL,
    first: int = 1,
    **settings: Any,
) -> RunSpec:
    """Run spec whose test day is day `number`, trained on the days before it."""
    config = PipelineConfig.model_validate(
        {"name": "test", "lake": str(lake), "tables": tables, "model": model, **settings}
    )
    oldest = max(first, number - config.data.window_days)
    return RunSpec(
        run_id=f"{day_of(number)}-{config.digest()[:6]}",
        day=day_of(number),
        train_days=tuple(day_of(n) for n in range(oldest, number)),
        test_days=(day_of(number),),
        config=config,
        code_version="test",
    )


def run_steps(spec: RunSpec, *names: str) -> StepResult:
    """Runs steps and leaves their results in the lake, as the pipeline does."""
    result = None
    for name in names or ("await_partition", "count", "vocabulary", "examples"):
        result = importlib.import_module(f"tasks.{name}").run(spec)
        spec.lake().write_text(f"{spec.folder}/{name}.json", result.model_dump_json())
    assert result is not None
    return result


def read_output(spec: RunSpec, step: str, name: str) -> pa.Table:
    """All Parquet rows of an output."""
    return Lake(spec.config.lake).read_tables(spec.output(step, name))
