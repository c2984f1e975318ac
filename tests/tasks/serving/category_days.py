"""A day of the tiny pipeline whose items have colours, three frequent ones and rare ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.run_spec import RunSpec
from tests.tasks.small_runs import (
    FIRST_DAY,
    fake_training,
    make_config,
    run_data_steps,
    write_raw_days,
)


@dataclass(frozen=True)
class CategoryDay:
    """A run whose candidate is trained, and the colour of each item."""

    spec: RunSpec
    colour: dict[str, str]


def make_category_day(lake: Path, uri: str) -> CategoryDay:
    """Runs a day up to its training."""
    write_raw_days(lake, 4)
    path = lake / f"raw/items/dt={FIRST_DAY}/part-0.parquet"
    items = pq.read_table(path)
    ids = items["item_id"].to_pylist()
    colour = {item: ("red", "blue", "green")[n % 3] for n, item in enumerate(ids)}
    colour |= {"i38": "mauve", "i39": "puce"}
    pq.write_table(items.append_column("colour", pa.array([colour[i] for i in ids])), path)
    config = make_config(lake, uri)
    body = config.model_dump(mode="json")
    body["tables"]["colour"] = {
        "source": "items.colour",
        "dim": 4,
        "vocabulary": {"min_count": 3, "tail_buckets": 1},
    }
    body["model"]["item"]["features"].append({"name": "colour", "table": "colour"})
    spec = run_data_steps(type(config).model_validate(body), date(2026, 1, 3))
    fake_training(spec, seed=4)
    return CategoryDay(spec, colour)
