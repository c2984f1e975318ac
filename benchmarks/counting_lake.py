"""A lake around synthetic events, for the count and vocabulary steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from tasks.config import PipelineConfig
from tasks.lake import MANIFEST, Lake, Manifest, partition_name
from tasks.run_spec import RunSpec

FIRST_DAY = date(2026, 1, 1)
WINDOW_DAYS = 30


def deliver(lake: Path, number: int, files: Sequence[Path]) -> None:
    """Puts files into the lake as day `number` (1, 2, …), with a manifest as ingest writes it."""
    partition = f"raw/interactions/{partition_name(day_of(number))}"
    folder = lake / partition
    if (folder / MANIFEST).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        target = folder / file.name
        if not target.exists():
            target.hardlink_to(file)
    (folder / "_SUCCESS").touch()
    found = Lake(str(lake)).partition("raw/interactions", day_of(number))
    assert found is not None
    manifest: Manifest = found.manifest
    (folder / MANIFEST).write_text(manifest.model_dump_json())


def day_of(number: int) -> date:
    """Day 1, 2, … of the lake."""
    return FIRST_DAY + timedelta(days=number - 1)


def spec_of(
    lake: Path, days: int, scheduler: str | None, table: Mapping[str, Any] | None = None
) -> RunSpec:
    """A run that trains on the lake's first `days` days.

    Args:
        lake: Folder of the lake.
        days: How many.
        scheduler: Address of a Dask scheduler.
        table: Further settings of both tables.
    """
    policy = {"min_count": 10, "tail_buckets": 1024}
    settings = {"vocabulary": policy, **(table or {})}
    config = PipelineConfig.model_validate(
        {
            "name": "counting",
            "lake": str(lake),
            "dask": {"scheduler": scheduler},
            "data": {"window_days": WINDOW_DAYS},
            "tables": {
                "user": {"source": "interactions.user_id", **settings},
                "item": {"source": "interactions.item_id", **settings},
            },
            "model": {
                "user": {"features": [{"name": "uid", "table": "user"}]},
                "item": {"features": [{"name": "iid", "table": "item"}]},
            },
        }
    )
    return RunSpec(
        run_id=f"counting-{days}",
        day=day_of(days + 1),
        train_days=tuple(day_of(number) for number in range(1, days + 1)),
        test_days=(day_of(days + 1),),
        config=config,
        code_version="benchmark",
    )
