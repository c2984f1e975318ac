"""A small lake that is good under the shipped contracts, and ways to spoil it."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import data_contracts
from tasks.config import PipelineConfig
from tasks.run_spec import RunSpec

FIRST = date(2026, 1, 1)
ROWS = 20
CONTRACTS = Path(data_contracts.__file__).parent


def events(day: date, **columns: pa.Array) -> pa.Table:
    """Good events of a day; any column may be replaced or added."""
    start = (day - date(1970, 1, 1)).days * 86_400_000_000
    times = pa.array([start + n * 1_000_000 for n in range(ROWS)])
    return pa.table(
        {
            "user_id": pa.array([f"u{n % 7}" for n in range(ROWS)]),
            "item_id": pa.array([f"i{n % 5}" for n in range(ROWS)]),
            "timestamp": times.cast(pa.timestamp("us", tz="UTC")),
            **columns,
        }
    )


def write(root: Path, dataset: str, day: date, table: pa.Table) -> Path:
    """A partition with a marker, as another system would deliver it."""
    folder = root / "raw" / dataset / f"dt={day}"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "a.parquet")
    (folder / "_SUCCESS").touch()
    return folder / "a.parquet"


def write_good_days(root: Path) -> None:
    """Three good days with an items table."""
    for n in range(3):
        write(root, "interactions", FIRST + timedelta(n), events(FIRST + timedelta(n)))
    write(root, "items", FIRST, pa.table({"item_id": ["i0", "i1"], "title": ["a", None]}))


def spoil(root: Path) -> date:
    """A null user and an unknown column on the second day."""
    day = FIRST + timedelta(1)
    users = pa.array([None, *(f"u{n}" for n in range(ROWS - 1))], pa.string())
    write(root, "interactions", day, events(day, user_id=users, price=pa.array([1.0] * ROWS)))
    return day


def pipeline(root: Path, uri: str | None = None, **data: object) -> PipelineConfig:
    """A pipeline on the lake, with an MLflow store at a URI."""
    ids = {name: {"source": f"interactions.{name}_id"} for name in ("user", "item")}
    towers = {name: {"features": [{"name": f"{name}_code", "table": name}]} for name in ids}
    return PipelineConfig.model_validate(
        {
            "name": "test",
            "lake": str(root),
            "tracking": {"uri": uri},
            "tables": ids,
            "model": towers,
            "data": data,
        }
    )


def spec_of(config: PipelineConfig, day: date, mlflow_run_id: str | None = None) -> RunSpec:
    """A run whose test day is the day, trained on all days before it."""
    return RunSpec(
        run_id="r",
        day=day,
        train_days=tuple(FIRST + timedelta(n) for n in range((day - FIRST).days)),
        test_days=(day,),
        config=config,
        code_version="test",
        mlflow_run_id=mlflow_run_id,
    )
