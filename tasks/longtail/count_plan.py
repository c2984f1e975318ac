"""Which days of which tables have to be counted, and what is counted already.

Reads manifests only: a day without news costs no data access and no heavy import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from tasks.config import PipelineConfig, TableSettings
from tasks.lake import Lake, Output, Published
from tasks.run_spec import RunSpec

_FORMAT = 1
"""Changes when the content of the count tables changes for the same input."""


class _Absent(Exception):
    """The output is not there."""


@dataclass(frozen=True)
class DayCounts:
    """The counts of one table and day: their identity, and the output when it is there."""

    table: str
    settings: TableSettings
    day: date
    partition: Published
    digest: str
    """Digest of the raw partition."""
    split: str | None = None
    """Column that says which rows are trained on; None for all rows."""

    @property
    def dataset(self) -> str:
        """Data set in the lake."""
        return f"counts/{self.table}"

    @property
    def inputs(self) -> Mapping[str, str]:
        """Inputs that the output's key is made of."""
        return {"partition": self.digest}

    @property
    def shape(self) -> Mapping[str, Any]:
        """Settings that the output's key is made of."""
        shape: dict[str, Any] = {"column": self.settings.column, "format": _FORMAT}
        if self.split is not None:
            shape["split"] = self.split
        if self.sketch_confidence is not None:
            shape["sketch_confidence"] = self.sketch_confidence
        return shape

    @property
    def sketch_confidence(self) -> float | None:
        """Confidence of the sketches of the IDs seen once; None to list those too."""
        return None if self.settings.seen_once == "exact" else self.settings.sketch_confidence

    def find(self, lake: Lake) -> Published | None:
        """The counts, when they are there."""

        def absent(_: Output) -> None:
            raise _Absent

        try:
            return lake.build(
                self.dataset, self.day, absent, inputs=self.inputs, settings=self.shape
            )
        except _Absent:
            return None


def first_test_day(spec: RunSpec) -> date:
    """Day from which on nothing may be known to the training.

    With a split that the data brings, rows decide, not days: it is the day after the run's.
    """
    if spec.config.data.split is not None:
        return spec.day + timedelta(days=1)
    return spec.test_days[0]


def wanted_counts(spec: RunSpec, lake: Lake) -> list[DayCounts]:
    """All tables and days that the vocabularies of a run are made from, oldest first.

    Days before the window count too: a vocabulary continues the one of the day before it, back
    to the first day of data.
    """
    config = spec.config
    partitions = {
        dataset: _partitions(spec, lake, dataset)
        for dataset in sorted({table.dataset for table in config.tables.values()})
    }
    return [
        DayCounts(
            name,
            table,
            day,
            partition,
            partition.digest,
            config.data.split if table.dataset == "interactions" else None,
        )
        for name, table in sorted(config.tables.items())
        for day, partition in partitions[table.dataset]
    ]


def _partitions(spec: RunSpec, lake: Lake, dataset: str) -> list[tuple[date, Published]]:
    first = _first_day(spec.config, dataset)
    days = [
        day
        for day in lake.days(f"raw/{dataset}")
        if day < first_test_day(spec) and (first is None or day >= first)
    ]
    found = [(day, lake.partition(f"raw/{dataset}", day)) for day in days]
    # A day that never became complete is outside the window (`await_partition` saw to that).
    return [(day, partition) for day, partition in found if partition is not None]


def _first_day(config: PipelineConfig, dataset: str) -> date | None:
    return config.data.first_day if dataset == "interactions" else None
