"""What checking one day of one data set found: JSON for machines, a table for people."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

from pydantic import BaseModel, ConfigDict

from data_contracts.rules import Severity

#: Rows that fit one screen with the headline.
SCREEN_ROWS = 20


class RuleResult(BaseModel):
    """One rule on one day."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    """Name of the rule."""
    column: str = ""
    """The column, or several for a key."""
    file: str = ""
    """The file, or the first of several."""
    found: str
    """What the data has."""
    expected: str
    """What the contract wants."""
    rows: int = 0
    """Rows, or values of lists, that break it; the file's rows when the whole file does."""
    sample: tuple[str, ...] = ()
    """Some of the values, hashed when the contract calls the column personal."""
    severity: Severity = "block"
    """What breaking it does."""
    passed: bool = False
    """Whether the rule is kept."""


class ContractResult(BaseModel):
    """All rules on one day of one data set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    """The data set."""
    day: date | None
    """The day; None for files outside a partition."""
    contract_version: str
    """Version that the contract states."""
    contract_digest: str
    """Identity of the contract and the checks."""
    partition_digest: str | None = None
    """Digest of the partition's manifest."""
    files: int
    """Files of the day."""
    rows: int
    """Rows of the readable files."""
    types: dict[str, str] = {}
    """Type of every column."""
    complete: bool = True
    """Whether all rules were checked; False when the files' footers already broke blocking ones."""
    rules: tuple[RuleResult, ...] = ()
    """The rules, in the contract's order, those of the footers first."""

    @property
    def broken(self) -> tuple[RuleResult, ...]:
        """Rules that are not kept, most severe first."""
        return tuple(sorted((r for r in self.rules if not r.passed), key=_severest_first))

    @property
    def blocked(self) -> bool:
        """Whether a blocking rule is broken."""
        return any(rule.severity == "block" for rule in self.broken)

    @property
    def warnings(self) -> int:
        """Number of broken rules that only warn."""
        return sum(rule.severity == "warn" for rule in self.broken)

    @property
    def title(self) -> str:
        """Data set and day."""
        return f"{self.dataset} {self.day}" if self.day else self.dataset


def broken_rules(results: Sequence[ContractResult]) -> list[tuple[str, RuleResult]]:
    """Broken rules of all results, each with the data set and day it belongs to."""
    return [(result.title, rule) for result in results for rule in result.broken]


def render(rules: Iterable[tuple[str, RuleResult]], *, rest: str, width: int = 160) -> str:
    """Broken rules as one table of at most one screen, most severe first.

    Args:
        rules: Rules, each with the data set and day it belongs to.
        rest: Where the rules are that do not fit.
        width: Characters of a line.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    ordered = sorted(rules, key=lambda pair: _severest_first(pair[1]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    if len({title for title, _ in ordered}) > 1:
        table.add_column("data", no_wrap=True)
    for name in ("rule", "column", "file", "found", "expected"):
        table.add_column(name, overflow="fold")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("sample", overflow="fold")
    with_title = len(table.columns) == 9
    for title, rule in ordered[:SCREEN_ROWS]:
        cells: list[Any] = [rule.severity, *([title] if with_title else [])]
        cells += [rule.rule, rule.column, rule.file, rule.found, rule.expected]
        cells += [f"{rule.rows:,}" if rule.rows else "", ", ".join(rule.sample)]
        table.add_row(*(Text(cell) for cell in cells))
    screen = io.StringIO()
    Console(file=screen, width=width, color_system=None).print(table)
    text = "\n".join(line.rstrip() for line in screen.getvalue().rstrip().splitlines())
    left = len(ordered) - SCREEN_ROWS
    return f"{text}\n… and {left} more: {rest}" if left > 0 else text


def _severest_first(rule: RuleResult) -> tuple[bool, int]:
    return (rule.severity == "warn", -rule.rows)
