"""`tailtower demo-data`: writes synthetic logs into a lake."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from tasks.demo_data import DemoReport, DemoSettings, generate
from tasks.errors import ConfigError
from tasks.lake import Lake

_DEFAULTS = DemoSettings()


def demo_data_command(
    lake: Annotated[str, typer.Option(help="Lake to write to: a path or a pyarrow.fs URL.")],
    start: Annotated[
        datetime, typer.Option(formats=["%Y-%m-%d"], help="First day (UTC).")
    ] = datetime(2026, 1, 1),
    days: Annotated[int, typer.Option(min=1, help="How many days.")] = 5,
    users: Annotated[
        int, typer.Option(help="Regular users; one-off visitors and joiners come on top.")
    ] = _DEFAULTS.users,
    items: Annotated[
        int, typer.Option(help="Regular items; rare items and releases come on top.")
    ] = _DEFAULTS.items,
    events_per_day: Annotated[
        int, typer.Option(help="Interactions of one day, exactly.")
    ] = _DEFAULTS.events_per_day,
    joiners_per_day: Annotated[
        int, typer.Option(help="New users of each day who stay for one to two weeks.")
    ] = _DEFAULTS.joiners_per_day,
    releases_per_day: Annotated[
        int, typer.Option(help="New items of each day that sell for one to two weeks.")
    ] = _DEFAULTS.releases_per_day,
    visitor_share: Annotated[
        float, typer.Option(help="Share of events by users who come once or twice.")
    ] = _DEFAULTS.visitor_share,
    rare_item_share: Annotated[
        float, typer.Option(help="Share of events on items that are taken once or twice.")
    ] = _DEFAULTS.rare_item_share,
    clusters: Annotated[
        int, typer.Option(help="Taste clusters: the truth that a model can find.")
    ] = _DEFAULTS.clusters,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = _DEFAULTS.seed,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite days that hold other data.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Write synthetic interaction logs whose IDs have a long tail.

    A day depends on the seed, the sizes and its date only: asking for more days, or for another
    first day, never changes it, and days that are there already are left alone. About nine IDs in
    ten occur once or twice; the report shows the share that came out.

    Users follow hidden taste clusters, which a model can find through the history, the items'
    `category` and `tags`, and the users' `interests`. The clusters are in `truth/` of the lake.

    Example: tailtower demo-data --lake var/lake --start 2026-01-01 --days 5
    """
    try:
        settings = DemoSettings(
            users=users,
            items=items,
            events_per_day=events_per_day,
            joiners_per_day=joiners_per_day,
            releases_per_day=releases_per_day,
            visitor_share=visitor_share,
            rare_item_share=rare_item_share,
            clusters=clusters,
            seed=seed,
        )
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-") if first["loc"] else "sizes"
        raise ConfigError(
            first["msg"].removeprefix("Value error, "),
            where=f"--{option}",
            fix="see tailtower demo-data --help",
        ) from error
    report = generate(
        settings, Lake(lake), start.date(), days, existing="replace" if replace else "refuse"
    )
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        Console().print(_table(report, lake))


def _table(report: DemoReport, lake: str) -> Table:
    table = Table(title=f"synthetic logs in {lake}", show_header=False)
    done = ", ".join(f"{count} {action}" for action, count in report.actions.items())
    table.add_row("days", f"{report.days[0]} to {report.days[-1]} ({done})")
    table.add_row("interactions", f"{report.events:,}")
    table.add_row(
        "users", f"{report.users:,}, of which {report.rare_users:.1%} occur once or twice"
    )
    table.add_row(
        "items", f"{report.items:,}, of which {report.rare_items:.1%} occur once or twice"
    )
    table.add_row("time", f"{report.seconds} s")
    return table
