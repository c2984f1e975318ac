"""Checks of Parquet footers, before any value is read.

A footer costs a few kilobytes of reading and tells the types, the rows and the nulls of a file.
Types are checked here and nowhere else: a frame no longer tells an integer column with a null
from a float column.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from data_contracts import arrow_types
from data_contracts.contract import Contract
from data_contracts.data_files import DataFile, DataFiles, FileState, UnreadableFileError
from data_contracts.result import RuleResult


@dataclass(frozen=True)
class Footer:
    """What a file's footer tells.

    Attributes:
        types: Type of every column, as named by `arrow_types`.
        nulls: Nulls of every column whose statistics count them; a list's are never counted.
        state: Size and time of the last change when the footer was read.
    """

    file: DataFile
    rows: int
    types: dict[str, str]
    nulls: dict[str, int]
    state: FileState = (None, None)


@dataclass
class FooterReport:
    """Footers of a day's readable files, and the rules that they break."""

    footers: list[Footer] = field(default_factory=list)
    broken: list[RuleResult] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of the readable files."""
        return sum(footer.rows for footer in self.footers)

    @property
    def types(self) -> dict[str, str]:
        """Type of every column, from the first file that has it."""
        types: dict[str, str] = {}
        for footer in self.footers:
            types = {**footer.types, **types}
        return types

    @property
    def blocked(self) -> bool:
        """Whether the values cannot be checked, because the files are not what they should be."""
        return any(rule.severity == "block" for rule in self.broken)


def check_footers(contract: Contract, data: DataFiles) -> FooterReport:
    """Reads every footer of a day and checks files, columns and types."""
    report = FooterReport()
    if not data.files:
        report.broken.append(
            RuleResult(rule="files", found="no Parquet file", expected="at least one")
        )
    for file, state in zip(data.files, data.states(data.files), strict=True):
        try:
            footer = _read(data, file, state)
        except UnreadableFileError as error:
            report.broken.append(
                RuleResult(
                    rule="readable", file=file.name, found=str(error), expected="a Parquet file"
                )
            )
            continue
        report.footers.append(footer)
        report.broken += _file_rules(contract, footer)
    report.broken += [_left_out(name) for name in data.left_out]
    report.broken += _rules_between_files(data, report.footers)
    return report


def read_footers(data: DataFiles) -> list[Footer]:
    """The footers of all files.

    Raises:
        UnreadableFileError: One of them cannot be read.
    """
    states = data.states(data.files)
    return [_read(data, file, state) for file, state in zip(data.files, states, strict=True)]


def changed_since(data: DataFiles, footers: Sequence[Footer]) -> list[RuleResult]:
    """A broken rule for each file that changed after its footer was read."""
    states = data.states([footer.file for footer in footers])
    return [
        RuleResult(
            rule="unchanged while read",
            file=footer.file.name,
            found="written to, or removed",
            expected="complete before it is checked",
            rows=footer.rows,
        )
        for footer, state in zip(footers, states, strict=True)
        if state != footer.state
    ]


def _left_out(name: str) -> RuleResult:
    return RuleResult(
        rule="file left out",
        file=name,
        found="a file that is not read",
        expected="Parquet files that the manifest, if there is one, names",
        severity="warn",
    )


def _read(data: DataFiles, file: DataFile, state: FileState) -> Footer:
    size, _ = state
    if file.bytes is not None and size is not None and size != file.bytes:
        raise UnreadableFileError(f"{size:,} bytes, its manifest says {file.bytes:,}")
    with data.open(file) as parquet:
        types = {item.name: arrow_types.type_name(item.type) for item in parquet.schema_arrow}
        repeated = len(types) != len(parquet.schema_arrow.names)
        if repeated:
            raise UnreadableFileError("two columns have the same name")
        rows = parquet.metadata.num_rows
        return Footer(file, rows, types, _nulls(parquet.metadata), state)


def _nulls(metadata: pq.FileMetaData) -> dict[str, int]:
    """Nulls of each flat column, where every row group's statistics count them."""
    nulls = {}
    for n in range(metadata.num_columns):
        chunks = [metadata.row_group(g).column(n) for g in range(metadata.num_row_groups)]
        if not chunks or "." in chunks[0].path_in_schema:
            continue
        statistics = [chunk.statistics for chunk in chunks]
        if all(s is not None and s.has_null_count for s in statistics):
            nulls[chunks[0].path_in_schema] = sum(s.null_count for s in statistics)
    return nulls


def _file_rules(contract: Contract, footer: Footer) -> Iterator[RuleResult]:
    """Rules that one file can break on its own."""
    name = footer.file.name
    if footer.rows == 0:
        yield RuleResult(
            rule="empty file", file=name, found="0 rows", expected="rows", severity="warn"
        )
    declared = [column.name for column in contract.columns]
    unknown = [column for column in footer.types if column not in declared]
    for column in contract.columns:
        found = footer.types.get(column.name)
        allowed = " | ".join(_short(column.types))
        if found is None:
            if not column.may_be_absent:
                yield RuleResult(
                    rule="missing column",
                    column=column.name,
                    file=name,
                    found=_instead(column.name, unknown),
                    expected=allowed,
                    rows=footer.rows,
                )
        elif not any(arrow_types.matches(found, wanted) for wanted in column.types):
            yield RuleResult(
                rule="type",
                column=column.name,
                file=name,
                found=found,
                expected=allowed,
                rows=footer.rows,
            )
    if contract.additional_columns is not None:
        for column_name in unknown:
            yield RuleResult(
                rule="unknown column",
                column=column_name,
                file=name,
                found=footer.types[column_name],
                expected="a column of the contract",
                rows=footer.rows,
                severity=contract.additional_columns,
            )


def _short(types: tuple[str, ...]) -> tuple[str, ...]:
    """Types of a logical type without their widths, which are all allowed."""
    for logical, names in arrow_types.LOGICAL.items():
        if types == names and len(names) > 1:
            return (logical,)
    return types


def _instead(column: str, unknown: list[str]) -> str:
    near = difflib.get_close_matches(column, unknown, n=1, cutoff=0.5)
    return f"no such column, but '{near[0]}'" if near else "no such column"


def _rules_between_files(data: DataFiles, footers: list[Footer]) -> Iterator[RuleResult]:
    """Rules that one file breaks against the others of the day."""
    first_with: dict[str, Footer] = {}
    first_content: dict[str, Footer] = {}
    sizes = Counter(footer.state[0] for footer in footers)
    for footer in footers:
        digest = footer.file.digest
        # Without a manifest, only files of one size can be the same file: those are read.
        if digest is None and footer.rows and sizes[footer.state[0]] > 1:
            with suppress(UnreadableFileError):  # removed by now, which is found at the end
                digest = data.digest(footer.file)
        if digest is not None and footer.rows:
            twin = first_content.setdefault(digest, footer)
            if twin is not footer:
                yield RuleResult(
                    rule="same file twice",
                    file=footer.file.name,
                    found=f"content of {twin.file.name}",
                    expected="new rows",
                    rows=footer.rows,
                )
        for column, found in footer.types.items():
            first = first_with.setdefault(column, footer)
            expected = first.types[column]
            if found != expected:
                yield RuleResult(
                    rule="type differs between files",
                    column=column,
                    file=footer.file.name,
                    found=found,
                    expected=f"{expected}, as in {first.file.name}",
                    rows=footer.rows,
                )
    for column, first in first_with.items():
        without = [footer for footer in footers if column not in footer.types]
        if without:
            yield RuleResult(
                rule="column in some files only",
                column=column,
                file=without[0].file.name,
                found=f"absent from {len(without)} of {len(footers)} files",
                expected=f"present, as in {first.file.name}",
                rows=sum(footer.rows for footer in without),
            )
