"""The comparison as a table in the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.evaluation.comparison import ModelComparison
from tasks.evaluation.stored import read_comparison
from tasks.report.table import basis, reference, rows
from tasks.run_spec import RunSpec

_METRIC_WIDTH = 14
_COLOURS = {"better": "green", "worse": "red"}


def print_comparison(spec: RunSpec, console: Console | None = None) -> None:
    """Prints the comparison of a finished run and what the gate decided.

    Raises:
        UpstreamError: The run has not been compared.
    """
    out = console or Console()
    show(read_comparison(spec), out)
    gate = spec.result("gate")
    if gate is not None:
        style = "bold green" if gate.facts["decision"] == "promoted" else "bold"
        out.print(f"[{style}]{escape(gate.facts['reason'])}[/{style}]", highlight=False)


def show(comparison: ModelComparison, console: Console) -> None:
    """Prints a comparison: a table against the reference, a line against every other model.

    Models that the differences are not about are left out where the terminal is narrow.
    """
    other = reference(comparison)
    names = [model.name for model in comparison.models]
    wide = _width(names) <= console.width
    shown = [n for n, name in enumerate(names) if wide or n == 0 or name == other]
    table = Table(
        title=comparison.run_id,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("metric", no_wrap=True)
    for n in shown:
        table.add_column(names[n], justify="right", min_width=min(len(names[n]), 12))
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows(comparison, other):
        table.add_row(
            escape(_indented(row.metric)),
            *(row.values[n] for n in shown),
            row.difference,
            escape(row.interval),
            _coloured(row.verdict),
        )
    console.print(table)
    if other is not None:
        console.print(f"difference: {escape(names[0])} minus {escape(other)}", highlight=False)
    for name in comparison.differences:
        deciding = [row for row in rows(comparison, name) if row.metric == comparison.metric]
        if name != other and deciding:
            row = deciding[0]
            interval = escape(row.interval)
            console.print(
                f"against {escape(name)}: {comparison.metric} {row.difference} {interval} "
                f"{_coloured(row.verdict)}",
                highlight=False,
            )
    console.print(f"[dim]{escape(basis(comparison))}[/dim]", highlight=False)


def _width(names: list[str]) -> int:
    """Columns that a table of these models takes."""
    fixed = (_METRIC_WIDTH, 10, 18, 7)
    return sum(fixed) + sum(max(len(name), 6) for name in names) + 2 * (len(fixed) + len(names))


def _indented(metric: str) -> str:
    """Recall on a part of the targets stands below recall as a whole."""
    part = metric.partition("/")[2]
    return f"  {part.replace('_', ' ')}" if part else metric


def _coloured(verdict: str) -> str:
    colour = _COLOURS.get(verdict)
    return f"[{colour}]{verdict}[/{colour}]" if colour else verdict
