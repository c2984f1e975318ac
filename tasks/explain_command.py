"""`tailtower explain-id`: why one ID has the rows of the embedding table that it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config_file import load_config
from tasks.run_command import parse_day

if TYPE_CHECKING:
    from tasks.explain_id import IdExplanation

_BAR = 30


def explain_id_command(
    table: Annotated[str, typer.Argument(help="Embedding table, for example item.")],
    identifier: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The ID as it stands in the logs; put -- before a negative one."
        ),
    ],
    config: ConfigOption = DEFAULT_CONFIG,
    day: Annotated[
        str | None, typer.Option(help="Day of the run, YYYY-MM-DD; default: the newest run.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Run id, instead of --day.")] = None,
    mates: Annotated[
        int, typer.Option(min=0, help="How many other IDs of its bucket are listed.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    settings: SetOption = None,
) -> None:
    """Show an ID's daily counts, its row or buckets, and who shares them.

    Reads the vocabulary and the counts of a finished run.
    """
    from tasks.explain_id import explain_id

    found = explain_id(
        load_config(Path(config), settings or ()),
        table,
        identifier,
        day=parse_day(day) if day else None,
        run=run,
        mates=mates,
    )
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        show(found, Console())


def show(found: IdExplanation, console: Console) -> None:
    """Prints an explanation."""

    def say(text: str) -> None:
        console.print(text, highlight=False)

    say(
        f"[bold]{escape(str(found.id))}[/bold] in table [bold]{escape(found.table)}[/bold] "
        f"({found.source}), vocabulary of {found.day}, run {escape(found.run_id)}"
    )
    if found.row is not None:
        say(f"owns [bold]row {found.row}[/bold] with {found.count:g} occurrences in the window")
    else:
        rows = " + ".join(map(str, found.codes))
        kind = "bucket rows" if len(found.codes) > 1 else "bucket row"
        seen = f"{found.count:g} occurrences in the window" if found.count else "not in the window"
        say(f"owns no row: shares [bold]{kind} {rows}[/bold], {seen}")
    say(f"[dim]rule: {escape(found.rule)}[/dim]")
    console.print(_days(found))
    for change in found.changes:
        say(f"{change.day}  {change.change}: row {change.row}")
    if not found.changes:
        say(f"never owned a row (vocabularies since {found.known_since})")
    for bucket in found.buckets:
        table = _table(f"bucket {bucket.row}: {bucket.ids:,} IDs, {bucket.count:,g} occurrences")
        table.add_column("also in it")
        table.add_column("count", justify="right")
        table.add_column("")
        for mate in bucket.mates:
            same = "same vector" if mate.shares_all and len(found.codes) > 1 else ""
            table.add_row(escape(str(mate.id)), f"{mate.count:g}", same)
        console.print(table)


def _days(found: IdExplanation) -> Table:
    top = max((day.count for day in found.days), default=0)
    table = _table("counts of each day")
    table.add_column("day", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("weight", justify="right")
    table.add_column("", no_wrap=True)
    for day in found.days:
        weight = f"{day.weight:.3g}" if day.weight else "outside"
        bar = "█" * -(-day.count * _BAR // top) if top else ""
        table.add_row(str(day.day), str(day.count), weight, bar)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
