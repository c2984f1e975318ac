"""Protects training from missing days, and later steps from input that changed unnoticed."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import await_partition
from tasks.config_file import load_config
from tasks.demo_data import DemoSettings, generate
from tasks.errors import PartitionMissingError
from tasks.lake import Lake
from tasks.run_spec import RunSpec
from tasks.version import PROJECT_ROOT

SETTINGS = DemoSettings(users=60, items=60, events_per_day=200)


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    generate(SETTINGS, lake, date(2026, 1, 1), 4)
    return lake


@pytest.fixture
def spec(lake) -> RunSpec:
    """Trains on the first three days, tests on the fourth."""
    config = load_config(PROJECT_ROOT / "conf" / "demo.yaml", [f"lake={lake.url}"])
    return RunSpec(
        run_id="2026-01-04-test",
        day=date(2026, 1, 4),
        train_days=tuple(date(2026, 1, day) for day in (1, 2, 3)),
        test_days=(date(2026, 1, 4),),
        config=config,
        code_version="test",
    )


def deliver(lake: Lake, day: str, users: list[str]) -> None:
    """A day as somebody else would write it: files, then `_SUCCESS`."""
    folder = lake.local_path(f"raw/interactions/dt={day}")
    folder.mkdir(parents=True, exist_ok=True)
    times = pa.array([1_767_225_600_000_000] * len(users), pa.timestamp("us", "UTC"))
    table = pa.table({"user_id": users, "item_id": users, "timestamp": times})
    pq.write_table(table, folder / "part.parquet")
    (folder / "_SUCCESS").touch()


def test_all_days_there(lake, spec):
    result = await_partition.run(spec)
    days = [f"interactions/2026-01-0{day}" for day in (1, 2, 3, 4)]
    assert [name for name in result.outputs if name.startswith("inter")] == days
    assert result.facts == {"days": 4, "rows": 800, "item_partitions": 4, "user_partitions": 4}
    published = lake.partition("raw/interactions", date(2026, 1, 2))
    assert result.digests["interactions/2026-01-02"] == published.digest
    assert await_partition.run(spec) == result


def test_missing_and_incomplete_days_are_named_and_worth_a_retry(lake, spec):
    lake.delete("raw/interactions/dt=2026-01-02")
    lake.local_path("raw/interactions/dt=2026-01-04/manifest.json").unlink()
    with pytest.raises(PartitionMissingError) as caught:
        await_partition.run(spec)
    message = str(caught.value)
    assert "2 day(s)" in message
    assert "2026-01-02, 2026-01-04 (incomplete)" in message
    assert "2026-01-01" not in message
    assert caught.value.transient


def test_many_missing_days_are_summed_up(lake, spec):
    for day in lake.days("raw/interactions"):
        lake.delete(f"raw/interactions/dt={day}")
    far = spec.model_copy(update={"train_days": tuple(date(2025, 12, day) for day in range(1, 31))})
    with pytest.raises(PartitionMissingError, match=r"31 day\(s\).*26 more up to 2026-01-04"):
        await_partition.run(far)


def test_a_day_with_only_a_marker_has_a_digest_of_its_content(lake, spec):
    lake.delete("raw/interactions/dt=2026-01-02")
    deliver(lake, "2026-01-02", ["a", "b"])
    first = await_partition.run(spec)
    assert first.facts["rows"] == 602
    assert await_partition.run(spec).digests == first.digests
    deliver(lake, "2026-01-02", ["a", "c"])
    second = await_partition.run(spec)
    changed = [name for name in first.digests if first.digests[name] != second.digests[name]]
    assert changed == ["interactions/2026-01-02"]


def test_side_tables_are_optional_and_their_future_is_not_read(lake, spec):
    generate(SETTINGS, lake, date(2026, 1, 5), 1)
    lake.delete("raw/users")
    lake.local_path("raw/items/dt=2026-01-03/manifest.json").unlink()
    result = await_partition.run(spec)
    assert result.facts["user_partitions"] == 0
    assert [name for name in result.outputs if name.startswith("items")] == [
        "items/2026-01-01",
        "items/2026-01-02",
        "items/2026-01-04",
    ]
