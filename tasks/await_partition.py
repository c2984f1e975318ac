"""Step: makes sure that every day of interactions the run reads has arrived completely.

It does not wait itself: it fails with a transient error that names the missing days, and the
scheduler tries again, so no process sits idle until the data comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from tasks.errors import PartitionMissingError
from tasks.lake import MANIFEST, SUCCESS, Lake, Published
from tasks.run_spec import RunSpec, StepResult

INTERACTIONS = "raw/interactions"
SIDE_TABLES = ("raw/items", "raw/users")
_NAMED_DAYS = 5


def run(spec: RunSpec) -> StepResult:
    """Collects the digests of the raw partitions that the run reads.

    A day is there when its folder holds `manifest.json` or `_SUCCESS`. Side tables are optional:
    their complete partitions up to the run's day are listed, so that a new delivery of one of
    them is noticed by the steps that read it.

    Returns:
        One output for each partition, named `interactions/2026-01-01` and so on; facts `days`,
        `rows`, `item_partitions` and `user_partitions`.

    Raises:
        PartitionMissingError: Days are missing or incomplete; the message names them.
    """
    lake = spec.lake()
    wanted = [*spec.train_days, *spec.test_days]
    arrived = _complete(lake, INTERACTIONS, wanted)
    missing = [day for day in wanted if day not in arrived]
    if missing:
        raise _missing(lake, missing)
    outputs = {f"interactions/{day}": published for day, published in arrived.items()}
    sides: dict[str, int] = {}
    for dataset in SIDE_TABLES:
        known = [day for day in lake.days(dataset) if day <= spec.day]
        found = _complete(lake, dataset, known)
        name = dataset.split("/")[-1]
        outputs |= {f"{name}/{day}": published for day, published in found.items()}
        sides[f"{name.removesuffix('s')}_partitions"] = len(found)
    rows = sum(published.manifest.rows for published in arrived.values())
    return StepResult.of("await_partition", outputs, days=len(arrived), rows=rows, **sides)


def _complete(lake: Lake, dataset: str, days: Sequence[date]) -> dict[date, Published]:
    found = {day: lake.partition(dataset, day) for day in days}
    return {day: published for day, published in found.items() if published is not None}


def _missing(lake: Lake, days: Sequence[date]) -> PartitionMissingError:
    started = set(lake.days(INTERACTIONS))
    named = [f"{day} (incomplete)" if day in started else str(day) for day in days[:_NAMED_DAYS]]
    if len(days) > _NAMED_DAYS:
        named.append(f"{len(days) - _NAMED_DAYS} more up to {days[-1]}")
    return PartitionMissingError(
        f"{len(days)} day(s) of interactions have not arrived: {', '.join(named)}",
        where=f"{lake.url}/{INTERACTIONS}",
        fix=f"deliver them and put {SUCCESS} (or {MANIFEST}) beside their files; to go on without "
        "them set data.allow_gaps: true and resolve the run again",
    )
