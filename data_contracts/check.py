"""Checks the files of one or more days of a data set against its contract."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from data_contracts.aggregate_checks import DayMeasures, judge
from data_contracts.contract import Contract
from data_contracts.data_files import BATCH_ROWS, DataFiles, UnreadableFileError
from data_contracts.duplicates import duplicates
from data_contracts.footer_checks import changed_since, check_footers
from data_contracts.partition_checks import FileOfDay, check_files
from data_contracts.result import ContractResult, RuleResult
from data_contracts.tally import Tallies, Tally
from data_contracts.value_counts import (
    COUNTED,
    Earlier,
    ValueCounts,
    count_values,
    counted_columns,
    measure,
)

#: Runs a function on every element: `map`, or a cluster's.
Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class DayOfData:
    """What is checked at once: the files of one day.

    Attributes:
        day: The day; None for files outside a partition, which have no rules about the day.
        data: The files.
        digest: Digest of the partition's manifest.
        trailing: Rows of the days before.
        earlier: Value counts of the days before, those that are not checked in the same call.
    """

    day: date | None
    data: DataFiles
    digest: str | None = None
    trailing: Mapping[date, int] = field(default_factory=dict)
    earlier: Earlier = field(default_factory=dict)


def check_days(
    contract: Contract,
    days: Sequence[DayOfData],
    *,
    mapper: Mapper = map,
    counts_folder: Path | None = None,
) -> list[ContractResult]:
    """Checks days against a contract; a result for each, in the same order.

    Data that breaks a rule is never an exception: it is in the result.

    Args:
        contract: The contract.
        days: The days.
        mapper: Runs the check of every file; by default one after the other in this process.
        counts_folder: Where the value counts that rules need are left for the days after; see
            `counts_of`.
    """
    measures = [DayMeasures(d.day, check_footers(contract, d.data), {}, d.trailing) for d in days]
    readable = [
        (measured, FileOfDay(replace(day.data, files=(footer.file,)), footer, day.day))
        for day, measured in zip(days, measures, strict=True)
        if not measured.report.blocked
        for footer in measured.report.footers
    ]
    groups = list(_groups(readable))
    tasks = [(contract, [file for _, file in group]) for group in groups]
    for group, found in zip(groups, mapper(_check_group, tasks), strict=True):
        for (measured, file), tallies in zip(group, found, strict=True):
            if isinstance(tallies, UnreadableFileError):
                changed = changed_since(file.data, [file.footer])
                measured.report.broken += changed or [_unreadable(file, tallies)]
                continue
            for key, tally in tallies.items():
                measured.tallies.setdefault(key, Tally()).merge(tally)
    with _folder(counts_folder) as folder:
        _finish_days(contract, sorted(zip(days, measures, strict=True), key=_in_order), folder)
    whole = [measured for measured in measures if not measured.report.blocked]
    judged = dict(zip(map(id, whole), judge(contract, whole), strict=True))
    return [
        ContractResult(
            dataset=contract.dataset,
            day=day.day,
            contract_version=contract.version,
            contract_digest=contract.digest,
            partition_digest=day.digest,
            files=len(day.data.files),
            rows=measured.report.rows,
            types=measured.report.types,
            complete=not measured.report.blocked,
            rules=(*measured.report.broken, *judged.get(id(measured), ())),
        )
        for day, measured in zip(days, measures, strict=True)
    ]


_Files = list[tuple[DayMeasures, FileOfDay]]


def _groups(files: _Files) -> Iterator[_Files]:
    """Files in order, in groups that one worker checks at once."""
    group: _Files = []
    for pair in files:
        group.append(pair)
        if sum(file.footer.rows for _, file in group) >= BATCH_ROWS:
            yield group
            group = []
    if group:
        yield group


def _check_group(
    task: tuple[Contract, list[FileOfDay]],
) -> list[Tallies | UnreadableFileError]:
    return check_files(*task)


def _unreadable(file: FileOfDay, error: UnreadableFileError) -> RuleResult:
    return RuleResult(
        rule="readable",
        file=file.footer.file.name,
        found=str(error),
        expected="a Parquet file",
        rows=file.footer.rows,
    )


def counts_of(folder: Path, day: date) -> dict[str, Path]:
    """Files with the value counts of a day that `check_days` left, by column."""
    return {unquote(path.stem): path for path in sorted((folder / str(day)).glob("*.parquet"))}


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="tailtower-counts-") as folder:
        yield Path(folder)


def _in_order(pair: tuple[DayOfData, DayMeasures]) -> date:
    return pair[0].day or date.min


def _finish_days(
    contract: Contract, pairs: Sequence[tuple[DayOfData, DayMeasures]], folder: Path
) -> None:
    """Counts what needs all files of a day at once, or the days before it."""
    columns = counted_columns(contract.rules)
    counted: dict[date, dict[str, ValueCounts]] = {}
    for day, measured in pairs:
        _finish(contract, day, measured)
        if measured.report.blocked or not measured.report.rows or not columns:
            continue
        counts = {
            column: count_values(
                day.data,
                measured.report,
                column,
                folder / str(day.day) / f"{quote(column, safe='')}.parquet",
            )
            for column in columns
            if column in measured.report.types
        }
        _judge_counts(contract, day, measured, counts, counted)
        if day.day is not None:
            counted[day.day] = counts


def _judge_counts(
    contract: Contract,
    day: DayOfData,
    measured: DayMeasures,
    counts: Mapping[str, ValueCounts],
    counted: Earlier,
) -> None:
    """Numbers of the rules about value counts, where there are enough days before to tell."""
    for rule in contract.rules:
        if rule.measure not in COUNTED or rule.column[0] not in counts:
            continue
        column, earlier = rule.column[0], []
        for back in range(1, rule.settings.get("days", 0) + 1):
            before = day.day - timedelta(days=back) if day.day else None
            found = (counted.get(before) or day.earlier.get(before)) if before else None
            if found and column in found:
                earlier.append(found[column])
        if len(earlier) >= rule.settings.get("minimumDays", 0):
            measured.counted[rule.key] = measure(rule, counts[column], earlier)


def _finish(contract: Contract, day: DayOfData, measured: DayMeasures) -> None:
    """Counts duplicates, unless the files are blocked already."""
    report = measured.report
    if report.blocked:
        return
    try:
        _count_duplicates(contract, day, measured)
    except Exception:
        # The files were read once without an error: a writer may be at work.
        report.broken += changed_since(day.data, report.footers)
        if not report.blocked:
            raise
    else:
        # Last, so that nothing that was read can have changed unseen.
        report.broken += changed_since(day.data, report.footers)


def _count_duplicates(contract: Contract, day: DayOfData, measured: DayMeasures) -> None:
    by_key: dict[tuple[str, ...], Tally] = {}
    for rule in contract.rules:
        if rule.measure != "duplicates" or not measured.report.rows:
            continue
        if all(name in measured.report.types for name in rule.column):
            if rule.column not in by_key:
                by_key[rule.column] = duplicates(contract, day.data, measured.report, rule.column)
            measured.tallies[rule.key] = by_key[rule.column]
