"""Protects numeric features through the pipeline: raw values arrive in the examples, what is
missing stays missing, what is no number is refused, and the served model answers as the measured
one."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import DataError
from tasks.serving.bundles import bundle_folder
from tasks.serving.by_id import RecommenderById
from tests.tasks.small_runs import (
    ANYTHING_PASSES,
    FIRST_DAY,
    fake_training,
    make_config,
    run_data_steps,
    run_steps,
    write_raw_days,
)

DAY = date(2026, 1, 3)


def _config(lake: Path, uri: str) -> Any:
    body = make_config(lake, uri).model_dump(mode="json")["model"]
    body["user"]["features"].append({"name": "age", "kind": "numeric"})
    body["item"]["features"].append({"name": "price", "kind": "numeric"})
    return make_config(lake, uri, model=body, **ANYTHING_PASSES)


def _add(lake: Path, dataset: str, key: str, name: str, value: Any) -> None:
    """Adds a column to all days of a side table."""
    for path in sorted((lake / "raw" / dataset).glob("*/part-0.parquet")):
        table = pq.ParquetFile(path).read()
        ids = table.column(key).to_pylist()
        pq.write_table(table.append_column(name, [value(ids)]), path)


def _ages(ids: list[str]) -> pa.Array:
    # Whole numbers: any type of number will do.
    return pa.array([None if int(i[1:]) % 4 == 0 else 20 + int(i[1:]) for i in ids], pa.int16())


def _prices(ids: list[str]) -> pa.Array:
    return pa.array([None if int(i[1:]) % 5 == 0 else int(i[1:]) / 8 for i in ids], pa.float64())


def _pairs(table: pa.Table, first: str, second: str) -> list[tuple[Any, Any]]:
    columns = (table.column(name).to_pylist() for name in (first, second))
    return list(zip(*columns, strict=True))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    write_raw_days(folder, 4)
    _add(folder, "users", "user_id", "age", _ages)
    _add(folder, "items", "item_id", "price", _prices)
    return folder


def test_numbers_reach_the_model_and_the_served_one(lake: Path, mlflow_uri: str) -> None:
    spec = run_data_steps(_config(lake, mlflow_uri), DAY)
    examples = spec.output("examples", "examples")
    tables = {
        name: spec.lake().read_table(examples.file(f"{name}/part-0.parquet"))
        for name in ("items", "users", "test")
    }
    known = {
        row["user_id"]: row["age"]
        for path in sorted((lake / "raw/users").glob("*/part-0.parquet"))
        for row in pq.ParquetFile(path).read(["user_id", "age"]).to_pylist()
    }
    for name in ("users", "test"):
        for user, age in _pairs(tables[name], "user_id", "age"):
            assert age == known.get(user)
    assert tables["users"].column("age").null_count > 0
    for item, price in _pairs(tables["items"], "item_id", "price"):
        number = int(item[1:])
        assert price == (None if number % 5 == 0 or number >= 40 else number / 8)
    users = dict(_pairs(tables["users"], "user", "age"))
    for path in (p for p in examples.files() if "/train/" in p):
        train = spec.lake().read_table(path)
        for user, age in _pairs(train, "user", "age"):
            assert age == users[user]
    fake_training(spec, seed=1)
    run_steps(spec, "evaluate", "compare", "gate")
    # Asks the registered model, through MLflow, for what was evaluated.
    assert run_steps(spec, "approve", "publish")["publish"].facts["promoted"]
    model = RecommenderById(bundle_folder(spec.lake(), spec.output("train.candidate", "model")))
    assert model.answer("u01", 5).scores == model.answer("u01", 5, attributes={"age": 21}).scores
    assert model.answer("u01", 5).scores != model.answer("u01", 5, attributes={"age": 60}).scores


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda ids: pa.array([float("inf")] * len(ids)), "'age' is inf for user_id"),
        (lambda ids: pa.array([float("nan")] * len(ids)), "'age' is nan for user_id"),
        (lambda ids: pa.array(["old"] * len(ids)), "'age' is string, not a number"),
    ],
)
def test_what_is_no_number_is_refused(
    tmp_path: Path, mlflow_uri: str, values: Any, message: str
) -> None:
    lake = tmp_path / "lake"
    write_raw_days(lake, 3)
    _add(lake, "items", "item_id", "price", _prices)
    _add(lake, "users", "user_id", "age", values)
    with pytest.raises(DataError, match=message) as refused:
        run_data_steps(_config(lake, mlflow_uri), FIRST_DAY.replace(day=3))
    assert "raw/users" in str(refused.value)
