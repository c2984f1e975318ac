"""Why one ID has the rows it has: its counts, its promotions and demotions, its bucket mates."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

import polars as pl

from models.config import Settings
from tasks.config import PipelineConfig, VocabularySettings
from tasks.errors import ConfigError
from tasks.lake import Lake, Published
from tasks.longtail.columns import collect, id_field, read_schema, scan
from tasks.longtail.id_hash import tail_buckets
from tasks.longtail.seen_once import has_sketches, is_seen_once
from tasks.longtail.vocabulary_table import FILE
from tasks.longtail.window import UNIT, WeightedDay, weigh
from tasks.run_spec import RUN_SPEC, RunSpec, load_run_spec

_INTEGER = re.compile(r"[+-]?\d+")
_RANGES = {"Int64": (-(2**63), 2**63 - 1), "UInt64": (0, 2**64 - 1)}


class DayCount(Settings):
    """Occurrences of the ID on one day."""

    day: date
    """The day."""
    count: int
    """Occurrences; a single one may be a sketch's mistake where IDs seen once go into one."""
    weight: float
    """What one of them counts in the window; 0 for a day outside it."""


class RowChange(Settings):
    """The vocabulary of a day that gave the ID a row or took it away."""

    day: date
    """Day of the vocabulary; it was made from the days before."""
    change: Literal["promoted", "demoted"]
    """What happened."""
    row: int
    """The row that was given or taken away."""


class BucketMate(Settings):
    """Another ID of the same bucket."""

    id: str | int
    """Raw ID."""
    count: float
    """Its occurrences in the window, decayed."""
    shares_all: bool
    """Whether it shares every bucket with the ID, so that the two have one vector."""


class Bucket(Settings):
    """A tail bucket that the ID lies in."""

    row: int
    """Its row in the embedding table."""
    ids: int
    """IDs of the window in it."""
    count: float
    """Their occurrences in the window, decayed."""
    mates: tuple[BucketMate, ...]
    """The most frequent of the others."""


class IdExplanation(Settings):
    """Everything about one ID of one table."""

    table: str
    """Embedding table."""
    source: str
    """Column whose IDs it holds."""
    id: str | int
    """The ID, in the type of the table."""
    run_id: str
    """Run whose vocabulary is explained."""
    day: date
    """Day of that vocabulary; it knows the days before."""
    row: int | None
    """The row that the ID owns, if it owns one."""
    codes: tuple[int, ...]
    """Rows whose sum is the ID's vector, 0 being the padding row."""
    tail_rows: tuple[int, ...]
    """Bucket rows that it has, or would have without a row of its own."""
    count: float
    """Occurrences in the window, decayed."""
    rule: str
    """When an ID owns a row."""
    days: tuple[DayCount, ...]
    """Every counted day, oldest first."""
    changes: tuple[RowChange, ...]
    """Promotions and demotions, oldest first."""
    known_since: date
    """Day of the oldest vocabulary that could be looked at."""
    buckets: tuple[Bucket, ...]
    """The buckets it lies in; none when it owns a row."""


@dataclass(frozen=True)
class _Subject:
    """The ID and where to look for it."""

    lake: Lake
    vocabulary: Published
    policy: VocabularySettings
    key: pl.Series
    """The ID, `[1]`."""
    counts: tuple[tuple[date, Published], ...]
    """Counts of every counted day, oldest first."""
    window: dict[date, WeightedDay]
    """The days that the vocabulary was made from."""


def explain_id(
    config: PipelineConfig,
    table: str,
    text: str,
    *,
    day: date | None = None,
    run: str | None = None,
    mates: int = 10,
) -> IdExplanation:
    """Explains one ID.

    Args:
        config: Says where the lake is.
        table: Name of an embedding table.
        text: The ID as text; it is read in the type of the table's IDs.
        day: Explains the vocabulary of the newest run of this day.
        run: Explains the vocabulary of this run.
        mates: How many others of each bucket are listed.

    Raises:
        ConfigError: There is no such table or run, no run has made a vocabulary, or the text is
            no ID of the table.
    """
    spec = _find_run(config, day, run)
    if table not in spec.config.tables:
        near = difflib.get_close_matches(table, spec.config.tables, n=1, cutoff=0.4)
        known = ", ".join(sorted(spec.config.tables))
        raise ConfigError(
            f"there is no embedding table '{table}'",
            where=f"tables of run {spec.run_id}",
            fix=f"did you mean '{near[0]}'? (tables: {known})" if near else f"one of: {known}",
        )
    subject = _subject(spec, table, text)
    policy = subject.policy
    changes, row, known_since = _changes(subject)
    placed = tail_buckets(
        subject.key, buckets=policy.tail_buckets, hashes=policy.hashes, seed=policy.seed
    )
    tail_rows = tuple(int(bucket[0]) for bucket in placed)
    days = tuple(_day_count(subject, counted, found) for counted, found in subject.counts)
    return IdExplanation(
        table=table,
        source=spec.config.tables[table].source,
        id=subject.key[0],
        run_id=spec.run_id,
        day=_day(subject.vocabulary),
        row=row,
        codes=tail_rows if row is None else (row, *[0] * (policy.hashes - 1)),
        tail_rows=tail_rows,
        count=sum(found.count * found.weight for found in days),
        rule=_rule(policy, spec.config.tables[table].seen_once == "sketch"),
        days=days,
        changes=tuple(changes),
        known_since=known_since,
        buckets=tuple(_buckets(subject, tail_rows, mates)) if row is None else (),
    )


def _find_run(config: PipelineConfig, day: date | None, run: str | None) -> RunSpec:
    lake = Lake(config.lake)
    made = {}
    for name in lake.list_folders("runs"):
        files = {info.base_name: info.mtime_ns for info in lake.list_files(f"runs/{name}")}
        if RUN_SPEC in files and "vocabulary.json" in files:
            made[name] = files["vocabulary.json"] or 0
    newest = sorted(made, key=lambda name: (name[:10], made[name]))
    if not newest:
        raise ConfigError(
            "no run has made a vocabulary yet",
            where=f"{lake.url}/runs",
            fix="start with `tailtower run`",
        )
    chosen = newest
    if run is not None:
        chosen = [name for name in newest if name == run]
    elif day is not None:
        chosen = [name for name in newest if name.startswith(f"{day}-")]
    if not chosen:
        raise ConfigError(
            f"no run {run or f'of {day}'} has made a vocabulary",
            where=f"{lake.url}/runs",
            fix=f"choose another; the newest: {', '.join(newest[-5:])}",
        )
    return load_run_spec(f"{lake.url}/runs/{chosen[-1]}/{RUN_SPEC}")


def _subject(spec: RunSpec, table: str, text: str) -> _Subject:
    lake = spec.lake()
    vocabulary = spec.output("vocabulary", table)
    policy = VocabularySettings.model_validate(vocabulary.manifest.meta["policy"])
    counted = spec.require("count").outputs
    counts = sorted(
        (date.fromisoformat(name.split("/")[1]), lake.open_published(path))
        for name, path in counted.items()
        if name.split("/")[0] == table
    )
    decay = policy.decay if spec.config.tables[table].dataset == "interactions" else 1.0
    window = {
        day: weigh(found, day, today=_day(vocabulary), decay=decay)
        for day, found in counts
        if f"counts/{day}" in vocabulary.manifest.inputs
    }
    path = vocabulary.file(FILE)
    schema = read_schema(lake, path).schema.to_arrow_schema()
    dtype, _ = id_field(schema, "id", f"{lake.url}/{path}")
    key = pl.Series("id", [_parse(text, dtype, table)], dtype=dtype)
    return _Subject(lake, vocabulary, policy, key, tuple(counts), window)


def _parse(text: str, dtype: pl.DataType, table: str) -> str | int:
    if dtype == pl.String():
        return text
    low, high = _RANGES[str(dtype)]
    if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
        raise ConfigError(
            f"'{text}' is no ID of table '{table}'",
            where=f"its IDs are {dtype}",
            fix=f"give an integer from {low} to {high}",
        )
    return int(text)


def _day(vocabulary: Published) -> date:
    assert vocabulary.manifest.day is not None
    return vocabulary.manifest.day


def _rule(policy: VocabularySettings, sketched: bool) -> str:
    lose = f"loses it below {policy.kept_from:g}"
    if policy.coverage is not None:
        rule = f"the most frequent IDs own rows until they cover {policy.coverage:.1%} of all"
    else:
        rule = f"an ID owns a row from {policy.min_count} occurrences and {lose}"
        if policy.max_rows is not None:
            rule += f"; at most {policy.max_rows} IDs do"
    if policy.ttl_days is not None:
        rule += f"; {policy.ttl_days} days without any end it"
    if sketched:
        rule += "; days with one occurrence count only beside a day with more in the window"
    return rule


def _day_count(subject: _Subject, day: date, found: Published) -> DayCount:
    total = 0
    for path in found.tables():
        query = scan(subject.lake, path, ["id", "count"]).filter(pl.col("id") == subject.key[0])
        total += int(collect(subject.lake, path, [query])[0]["count"].sum())
    if not total and has_sketches(found):
        total = int(is_seen_once(subject.lake, found, subject.key))
    weighted = subject.window.get(day)
    return DayCount(day=day, count=total, weight=weighted.units / UNIT if weighted else 0.0)


def _changes(subject: _Subject) -> tuple[list[RowChange], int | None, date]:
    """Walks the chain back; returns the changes, the row owned now, and the oldest day seen.

    An owner's `since` names the day of its promotion, so the vocabularies in between need not be
    read.
    """
    changes: list[RowChange] = []
    row_now: int | None = None
    owner_since: date | None = None
    later: date | None = None
    for vocabulary in _chain(subject.lake, subject.vocabulary):
        day = _day(vocabulary)
        if owner_since is None or day < owner_since:
            found = _owner(subject, vocabulary)
            owner_since = None
            if found is not None:
                row, owner_since = found
                changes.append(RowChange(day=owner_since, change="promoted", row=row))
                if later is None:
                    row_now = row
                else:
                    demoted = RowChange(day=later, change="demoted", row=row)
                    changes.insert(-1, demoted)
        later = day
    assert later is not None
    return changes[::-1], row_now, later


def _owner(subject: _Subject, vocabulary: Published) -> tuple[int, date] | None:
    """Row of the ID in a vocabulary and the day that gave it, when it owns one."""
    path = vocabulary.file(FILE)
    schema = read_schema(subject.lake, path).schema.to_arrow_schema()
    if id_field(schema, "id", path)[0] != subject.key.dtype:
        return None  # an empty vocabulary does not know the type of its IDs
    query = scan(subject.lake, path, ["id", "row", "since"])
    found = collect(subject.lake, path, [query.filter(pl.col("id") == subject.key[0])])[0]
    return (found["row"][0], found["since"][0]) if found.height else None


def _chain(lake: Lake, newest: Published) -> Iterator[Published]:
    """A vocabulary and all before it that are still in the lake, newest first."""
    current: Published | None = newest
    while current is not None:
        yield current
        wanted = current.manifest.inputs.get("previous")
        current = _find_before(lake, current, wanted) if wanted else None


def _find_before(lake: Lake, current: Published, digest: str) -> Published | None:
    dataset = current.manifest.dataset
    earlier = [day for day in lake.days(dataset) if day < _day(current)]
    for day in reversed(earlier):
        folder = f"{dataset}/dt={day}"
        for key in lake.list_folders(folder):
            found = lake.find(f"{folder}/{key}")
            if found is not None and found.digest == digest:
                return found
    return None


def _buckets(subject: _Subject, rows: Sequence[int], mates: int) -> Iterator[Bucket]:
    """The buckets, from the window's counts; only their own IDs are kept while reading."""
    policy = subject.policy
    names = [f"bucket_{n}" for n in range(policy.hashes)]
    kept = []
    for day in subject.window.values():
        for path in day.counts.tables():
            frame = collect(subject.lake, path, [scan(subject.lake, path, ["id", "count"])])[0]
            placed = tail_buckets(
                frame["id"], buckets=policy.tail_buckets, hashes=policy.hashes, seed=policy.seed
            )
            frame = frame.with_columns(placed).filter(pl.any_horizontal(pl.col(names).is_in(rows)))
            kept.append(frame.with_columns(units=pl.col("count") * day.units))
    if not kept:
        return
    path = subject.vocabulary.file(FILE)
    owners = collect(subject.lake, path, [scan(subject.lake, path, ["id"])])[0]
    tail = (
        pl.concat(kept)
        .group_by("id", *names)
        .agg(pl.col("units").sum())
        .join(owners, on="id", how="anti")
        .sort(["units", "id"], descending=[True, False])
        .with_columns(shares_all=pl.concat_list(names).list.sort() == sorted(rows))
    )
    for row in sorted(set(rows)):
        inside = tail.filter(pl.any_horizontal(pl.col(names) == row))
        others = inside.filter(pl.col("id") != subject.key[0]).head(mates)
        yield Bucket(
            row=row,
            ids=inside.height,
            count=int(inside["units"].sum()) / UNIT,
            mates=tuple(
                BucketMate(id=name, count=units / UNIT, shares_all=shares_all)
                for name, units, shares_all in others.select(
                    "id", "units", "shares_all"
                ).iter_rows()
            ),
        )
