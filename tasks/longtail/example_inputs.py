"""What the examples of a run are made from; reads manifests only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from tasks.errors import UpstreamError
from tasks.lake import Lake, Published
from tasks.longtail.count_plan import first_test_day
from tasks.longtail.event_file import EventFile
from tasks.longtail.features import FeaturePlan, item_features, user_features
from tasks.run_spec import RunSpec

_FORMAT = 4
"""Changes when the examples change for the same input."""


@dataclass(frozen=True)
class ExampleInputs:
    """Files and settings of a run's examples.

    Attributes:
        train: Files of interactions that are trained on.
        test: Files of interactions of the test days.
        items: Files of the items table up to the last test day, oldest day first.
        users_before: Files of the users table of the days before the first test day.
        users_until: Files of the users table up to the last test day.
        bytes: Size of the interactions.
        rows: Rows of the interactions that are trained on.
        user_counts: Each training day and the files of its users' counts; empty when no table
            counts the users.
        cut_us: Start of the first test day, microseconds since 1970.
        ages_from_us: Instant from which the ages of interactions are measured, likewise.
        split: Column that says which rows are trained on; None where days say it.
        history: Which of the user's items a history holds.
        half_life_days: Age at which an interaction counts half for the model's prior.
        neighbours: Name of each feature of kind `neighbours`, and how many it wants.
        neighbours_own: Table in which neighbours own a row; None without such a feature.
        vocabularies: Lake path of each table's vocabulary.
        tables: Rows and hashes of each table, and the digest of its vocabulary.
        digests: Digest of every input.
        settings: Settings that shape the examples.
    """

    train: tuple[EventFile, ...]
    test: tuple[EventFile, ...]
    items: tuple[str, ...]
    users_before: tuple[str, ...]
    users_until: tuple[str, ...]
    bytes: int
    rows: int
    user_counts: tuple[tuple[date, tuple[str, ...]], ...]
    cut_us: int
    ages_from_us: int
    split: str | None
    history: Literal["past", "others"]
    half_life_days: float | None
    vocabularies: Mapping[str, str]
    table_rows: Mapping[str, int]
    table_hashes: Mapping[str, int]
    user_features: tuple[FeaturePlan, ...]
    item_features: tuple[FeaturePlan, ...]
    history_length: int
    neighbours: tuple[tuple[str, int], ...]
    neighbours_own: str | None
    seed: int
    digests: Mapping[str, str]
    settings: Mapping[str, Any]


def gather_inputs(spec: RunSpec) -> ExampleInputs:
    """Collects the inputs from the results of the earlier steps.

    Raises:
        UpstreamError: A step has not finished.
        ConfigError: A feature cannot be read from its table.
    """
    lake = spec.lake()
    arrived = spec.require("await_partition")
    raw = {"interactions": {}, "items": {}, "users": {}}  # type: dict[str, dict[date, Published]]
    digests = {}
    for name in sorted(arrived.outputs):
        dataset, day = name.split("/")
        if dataset in raw:
            raw[dataset][date.fromisoformat(day)] = _partition(lake, dataset, day)
            digests[name] = arrived.digests[name]
    vocabularies = {name: spec.output("vocabulary", name) for name in spec.config.tables}
    digests |= {f"vocabulary/{name}": found.digest for name, found in vocabularies.items()}
    interactions = raw["interactions"]
    before = {day: found for day, found in raw["users"].items() if day < first_test_day(spec)}
    users, items = user_features(spec.config), item_features(spec.config)
    near = [f for f in spec.config.model.item.features if f.kind == "neighbours"]
    neighbours = tuple((f.name, f.max_length) for f in near)
    seed = spec.config.training.seed
    prior = spec.config.model.prior
    half_life = None if prior is None else prior.half_life_days
    read = [interactions[day] for day in dict.fromkeys((*spec.train_days, *spec.test_days))]
    return ExampleInputs(
        train=_event_files(interactions[day] for day in spec.train_days),
        test=_event_files(interactions[day] for day in spec.test_days),
        items=_files(raw["items"]),
        users_before=_files(before),
        users_until=_files(raw["users"]),
        bytes=sum(entry.bytes for found in read for entry in found.manifest.files),
        rows=sum(interactions[day].manifest.rows for day in spec.train_days),
        user_counts=_user_counts(spec),
        cut_us=_start_of(first_test_day(spec)),
        ages_from_us=_start_of(_day_after_training(spec)),
        split=spec.config.data.split,
        history=spec.config.data.history,
        half_life_days=half_life,
        vocabularies={name: found.path for name, found in vocabularies.items()},
        table_rows={n: int(v.manifest.meta["rows"]) for n, v in vocabularies.items()},
        table_hashes={n: int(v.manifest.meta["hashes"]) for n, v in vocabularies.items()},
        user_features=users,
        item_features=items,
        history_length=spec.config.history_length,
        neighbours=neighbours,
        neighbours_own=near[0].table if near else None,
        seed=seed,
        digests=digests,
        settings={
            "format": _FORMAT,
            "train_days": [str(day) for day in spec.train_days],
            "test_days": [str(day) for day in spec.test_days],
            "user_features": [asdict(plan) for plan in users],
            "item_features": [asdict(plan) for plan in items],
            "split": spec.config.data.split,
            "history": spec.config.data.history,
            "half_life_days": half_life,
            "history_length": spec.config.history_length,
            "neighbours": neighbours,
            "seed": seed,
        },
    )


def _partition(lake: Lake, dataset: str, day: str) -> Published:
    found = lake.partition(f"raw/{dataset}", date.fromisoformat(day))
    if found is None:
        raise UpstreamError(
            "a partition that had arrived is gone",
            where=f"{lake.url}/raw/{dataset}/dt={day}",
            fix="deliver it again, or resolve the run again",
        )
    return found


def _user_counts(spec: RunSpec) -> tuple[tuple[date, tuple[str, ...]], ...]:
    tables = spec.config.tables.items()
    names = [name for name, table in tables if table.source == "interactions.user_id"]
    if not names:
        return ()
    counted = {day: spec.output("count", f"{names[0]}/{day}") for day in spec.train_days}
    return tuple((day, tuple(counts.tables())) for day, counts in counted.items())


def _day_after_training(spec: RunSpec) -> date:
    """The first test day, or the day after the last one with rows that are trained on."""
    if spec.config.data.split is None:
        return first_test_day(spec)
    tables = spec.config.tables.items()
    [item] = [name for name, table in tables if table is spec.config.item_table]
    counted = {day: spec.output("count", f"{item}/{day}").manifest for day in spec.train_days}
    last = max((day for day, found in counted.items() if found.meta["ids"]), default=spec.day)
    return last + timedelta(days=1)


def _start_of(day: date) -> int:
    """Midnight of a day, microseconds since 1970."""
    return int(datetime.combine(day, datetime.min.time(), UTC).timestamp()) * 1_000_000


def _event_files(days: Iterable[Published]) -> tuple[EventFile, ...]:
    return tuple(
        EventFile(f"{found.path}/{entry.path}", entry.rows)
        for found in days
        for entry in sorted(found.manifest.files, key=lambda entry: entry.path)
        if entry.rows is not None
    )


def _files(partitions: Mapping[date, Published]) -> tuple[str, ...]:
    return tuple(
        path
        for day in sorted(partitions)
        for path in sorted(partitions[day].files())
        if path.endswith(".parquet")
    )
