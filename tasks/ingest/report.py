"""What an ingest did: rows in, rows out, and why each other row was dropped."""

from __future__ import annotations

from datetime import date
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tasks.ingest.publication import Action

#: Rejected rows that the report keeps of each reason, and how many a terminal shows.
SAMPLES = 5
_SHOWN = 2


class RejectedRow(BaseModel):
    """One dropped row, to look it up."""

    file: str
    """Path of the file."""
    row: int
    """Row of a Parquet file, line of a text file; counted from 1."""
    reason: str
    """Why it was dropped."""
    values: dict[str, Any]
    """The values that were looked at."""


class TableReport(BaseModel):
    """What became of one table's rows; `rows_in` is `rows_out` plus all of `dropped`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    dataset: str
    """Data set of the lake."""
    digest: str
    """Identity of the source and its mapping; recorded in the manifest of every day."""
    files: list[str] = Field(default_factory=list)
    """Files that were read, in order."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Lake column → source column."""
    time_rule: str | None = None
    """How times were read."""
    rows_in: int = 0
    """Rows of the files, malformed ones included."""
    rows_out: int = 0
    """Rows in the lake."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """Rows dropped, by reason; a row counts under the first reason that applies."""
    samples: list[RejectedRow] = Field(default_factory=list)
    """Some of the dropped rows."""
    days: list[date] = Field(default_factory=list)
    """Days with rows."""
    actions: dict[Action, int] = Field(default_factory=dict)
    """What was done with the days."""


class IngestReport(BaseModel):
    """What an ingest did."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    digest: str
    """Identity of all sources and their mappings."""
    interactions: TableReport
    """The interactions."""
    users: int
    """Distinct users of the interactions."""
    items: int
    """Distinct items of the interactions."""
    side_tables: list[TableReport] = Field(default_factory=list)
    """Items and users tables."""
    notes: list[str] = Field(default_factory=list)
    """What a reader must know before using the data."""
    seconds: float = 0.0
    """Time taken."""
    reused: bool = False
    """Whether everything was in the lake already and nothing was read again."""

    @property
    def tables(self) -> list[TableReport]:
        """All tables, the interactions first."""
        return [self.interactions, *self.side_tables]


def render(report: IngestReport) -> Group:
    """The report as tables for a terminal."""
    parts: list[Any] = [f"[bold red]note:[/bold red] {note}" for note in report.notes]
    for table in report.tables:
        parts.append(_counts(table, report))
        if table.samples:
            parts.append(_samples(table))
    if report.reused:
        parts.append("The lake holds all of this already; nothing was read again.")
    else:
        rate = sum(table.rows_in for table in report.tables) / max(report.seconds, 1e-9)
        parts.append(f"{report.seconds:.1f} s, {rate:,.0f} rows/s")
    return Group(*parts)


def _counts(table: TableReport, report: IngestReport) -> Table:
    shown = Table(title=table.dataset, title_justify="left", show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    shown.add_column()
    read = ", ".join(f"{target} = {source}" for target, source in table.columns.items())
    shown.add_row("rows in", f"{table.rows_in:,}", read)
    for reason, count in table.dropped.items():
        shown.add_row(f"  {reason}", f"-{count:,}", f"{count / max(1, table.rows_in):.1%}")
    shown.add_row("rows out", f"{table.rows_out:,}", table.time_rule or "")
    if table.days:
        done = ", ".join(f"{count:,} {action}" for action, count in table.actions.items())
        span = f"{table.days[0]} to {table.days[-1]}"
        shown.add_row("days", f"{len(table.days):,}", f"{span}; {done}")
    if table is report.interactions:
        shown.add_row("users", f"{report.users:,}", "distinct")
        shown.add_row("items", f"{report.items:,}", "distinct")
    return shown


def _samples(table: TableReport) -> Group:
    """The first examples of each reason, one line each."""
    lines = [Text("for example", style="italic")]
    taken: dict[str, int] = {}
    for row in table.samples:
        taken[row.reason] = taken.get(row.reason, 0) + 1
        if taken[row.reason] <= _SHOWN:
            name = row.file.rsplit("/", 1)[-1]
            values = ", ".join(f"{key}={value!r}" for key, value in row.values.items())
            line = f"  {name}:{row.row}  {row.reason}: {values}"
            lines.append(Text(line, no_wrap=True, overflow="ellipsis"))
    return Group(*lines)
