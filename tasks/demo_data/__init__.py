"""Synthetic interaction logs with a long tail of IDs and a hidden truth to be found.

`generate` writes days of ``raw/interactions``, ``raw/items`` and ``raw/users`` into a lake, and the
taste cluster of every user and item into ``truth/``, which no step of the pipeline reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from tasks.demo_data.day import DemoDay, generate_day
from tasks.demo_data.settings import DemoSettings
from tasks.ingest.publication import Action, Existing, decide, publish_day
from tasks.lake import Lake, Output, Published
from tasks.progress import progress

__all__ = ["DemoDay", "DemoReport", "DemoSettings", "generate", "generate_day"]

INTERACTIONS = "raw/interactions"
_TABLES: dict[str, Callable[[DemoDay], pa.Table]] = {
    "raw/items": lambda day: day.items,
    "raw/users": lambda day: day.users,
    "truth/items": lambda day: day.item_truth,
    "truth/users": lambda day: day.user_truth,
    # The interactions come last: a day of them promises that the side tables are there.
    INTERACTIONS: lambda day: day.interactions,
}
#: IDs that occur at most this often count as rare.
RARE = 2


class DemoReport(BaseModel):
    """What was written, and how long the tail turned out."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    days: tuple[date, ...]
    """The days, oldest first."""
    actions: dict[Action, int]
    """How many days were published, replaced, or there already."""
    events: int
    """Interactions of all days."""
    users: int
    """Distinct users."""
    items: int
    """Distinct items."""
    rare_users: float
    """Share of users that occur once or twice."""
    rare_items: float
    """Share of items that occur once or twice."""
    seconds: float
    """Time taken."""


def generate(
    settings: DemoSettings,
    lake: Lake,
    start: date,
    days: int,
    *,
    existing: Existing = "refuse",
) -> DemoReport:
    """Write ``days`` days from ``start`` into ``lake``; days that are there already are left alone.

    A day's content depends on ``settings`` and its date only, never on ``start`` or ``days``.

    Raises:
        DataError: A day holds other data and ``existing`` is ``refuse``.
    """
    began = time.monotonic()
    wanted = [start + timedelta(days=n) for n in range(days)]
    # Refuse before anything is written, not half-way through.
    for day in wanted:
        for dataset in _TABLES:
            decide(lake, dataset, day, source=settings.digest, existing=existing)
    actions: dict[Action, int] = {}
    users, items = _Counts("user_id"), _Counts("item_id")
    with progress("demo-data", len(wanted)) as ticker:
        for day in wanted:
            published, action = _write_day(settings, lake, day, existing)
            actions[action] = actions.get(action, 0) + 1
            table = lake.read_tables(published, ["user_id", "item_id"])
            users.add(table)
            items.add(table)
            ticker.advance()
    return DemoReport(
        days=tuple(wanted),
        actions=actions,
        events=users.total(),
        users=len(users),
        items=len(items),
        rare_users=users.rare_share(),
        rare_items=items.rare_share(),
        seconds=round(time.monotonic() - began, 2),
    )


def _write_day(
    settings: DemoSettings, lake: Lake, day: date, existing: Existing
) -> tuple[Published, Action]:
    generated: list[DemoDay] = []

    def table_of(dataset: str) -> pa.Table:
        if not generated:
            generated.append(generate_day(settings, day))
        return _TABLES[dataset](generated[0])

    def writer(dataset: str) -> Callable[[Output, Published | None], None]:
        def write(output: Output, base: Published | None) -> None:
            tables = [table_of(dataset)]
            if base is not None:
                tables.insert(0, lake.read_tables(base))
            output.write_table(
                "part-0.parquet", pa.concat_tables(tables, promote_options="default")
            )

        return write

    for dataset in _TABLES:
        done = publish_day(
            lake, dataset, day, writer(dataset), source=settings.digest, existing=existing
        )
    return done.published, done.action


class _Counts:
    """Exact counts of an ID column, merged day by day."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._table = pa.table({"id": pa.array([], pa.string()), "n": pa.array([], pa.int64())})

    def add(self, table: pa.Table) -> None:
        counted = pc.value_counts(table[self._column].combine_chunks())
        day = pa.table({"id": counted.field("values"), "n": counted.field("counts")})
        merged = pa.concat_tables([self._table, day]).group_by("id").aggregate([("n", "sum")])
        self._table = merged.rename_columns(["id", "n"])

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def total(self) -> int:
        return int(pc.sum(self._table["n"]).as_py() or 0)

    def rare_share(self) -> float:
        rare = pc.sum(pc.less_equal(self._table["n"], RARE)).as_py() or 0
        return float(rare / max(1, len(self)))
