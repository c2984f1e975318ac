"""Checks the files of one or more days of a data set against its contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from data_contracts.aggregate_checks import DayMeasures, duplicates, judge
from data_contracts.contract import Contract
from data_contracts.data_files import BATCH_ROWS, DataFiles, UnreadableFileError
from data_contracts.footer_checks import changed_since, check_footers
from data_contracts.partition_checks import FileOfDay, Tallies, Tally, check_files
from data_contracts.result import ContractResult, RuleResult

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
    """

    day: date | None
    data: DataFiles
    digest: str | None = None
    trailing: Mapping[date, int] = field(default_factory=dict)


def check_days(
    contract: Contract, days: Sequence[DayOfData], *, mapper: Mapper = map
) -> list[ContractResult]:
    """Checks days against a contract; a result for each, in the same order.

    Data that breaks a rule is never an exception: it is in the result.

    Args:
        contract: The contract.
        days: The days.
        mapper: Runs the check of every file; by default one after the other in this process.
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
    for day, measured in zip(days, measures, strict=True):
        _finish(contract, day, measured)
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


def _finish(contract: Contract, day: DayOfData, measured: DayMeasures) -> None:
    """Counts what needs all files of the day at once, unless they are blocked already."""
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
