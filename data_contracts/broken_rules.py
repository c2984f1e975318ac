"""The broken rules of many days as one table that fits a screen."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from data_contracts.result import ContractResult, RuleResult, severest_first

#: Rows that fit one screen with the headline.
SCREEN_ROWS = 20
_SAMPLES = 2
_SAMPLE_WIDTH = 36


@dataclass(frozen=True)
class BrokenRule:
    """One rule of a data set and the days that break it.

    Attributes:
        days: The days, the one with most rows first; empty for files outside a partition.
        rule: The rule on that day, with the rows of all days.
    """

    dataset: str
    days: tuple[date, ...]
    rule: RuleResult

    @property
    def where(self) -> str:
        """Data set and days, in few words."""
        if not self.days:
            return self.dataset
        more = f" and {len(self.days) - 1} more" if len(self.days) > 1 else ""
        return f"{self.dataset} {self.days[0]}{more}"

    def __str__(self) -> str:
        return f"{self.where}: {self.rule.rule} {self.rule.column}".strip()


def broken_rules(
    results: Iterable[ContractResult], others: Iterable[BrokenRule] = ()
) -> list[BrokenRule]:
    """Broken rules, most severe first; a rule that many days break is one entry.

    Args:
        results: Results of any days and data sets.
        others: Rules between days, which belong to no one result.
    """
    alike: dict[tuple[str, ...], list[BrokenRule]] = {}
    for result in results:
        for rule in result.broken:
            found = BrokenRule(result.dataset, (result.day,) if result.day else (), rule)
            key = (result.dataset, rule.rule, rule.column, rule.severity, rule.expected)
            # Days share a line; faults of several files of one day keep theirs.
            occurrence = sum(other.days == found.days for other in alike.get(key, ()))
            alike.setdefault((*key, str(occurrence)) if occurrence else key, []).append(found)
    merged = [*map(_merged, alike.values()), *others]
    return sorted(merged, key=lambda broken: severest_first(broken.rule))


def _merged(group: Sequence[BrokenRule]) -> BrokenRule:
    ordered = sorted(group, key=lambda broken: -broken.rule.rows)
    worst = ordered[0]
    rows = sum(broken.rule.rows for broken in group)
    days = tuple(day for broken in ordered for day in broken.days)
    return BrokenRule(worst.dataset, days, worst.rule.model_copy(update={"rows": rows}))


def render(broken: Sequence[BrokenRule], *, rest: str, width: int = 160) -> str:
    """Broken rules as one table of at most one screen.

    Args:
        broken: The rules, in the order they are shown in.
        rest: Where the rules are that do not fit.
        width: Characters of a line.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    places = {(entry.dataset, day) for entry in broken for day in entry.days or (None,)}
    with_place = len(places) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    if with_place:
        table.add_column("data", no_wrap=True)
    for name in ("rule", "column", "file", "found", "expected"):
        table.add_column(name, overflow="fold")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("sample", no_wrap=True, overflow="ellipsis", max_width=_SAMPLE_WIDTH)
    for entry in broken[:SCREEN_ROWS]:
        rule = entry.rule
        cells = [rule.severity, *([entry.where] if with_place else [])]
        cells += [rule.rule, rule.column, rule.file, rule.found, rule.expected]
        cells += [f"{rule.rows:,}" if rule.rows else "", ", ".join(rule.sample[:_SAMPLES])]
        table.add_row(*(Text(cell) for cell in cells))
    screen = io.StringIO()
    Console(file=screen, width=width, color_system=None).print(table)
    text = "\n".join(line.rstrip() for line in screen.getvalue().rstrip().splitlines())
    left = len(broken) - SCREEN_ROWS
    return f"{text}\n… and {left} more: {rest}" if left > 0 else text
