"""`tailtower recommend`: what the champion, or a run's model, recommends to a user."""

from __future__ import annotations

from typing import Annotated

import typer

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config_file import load_config


def recommend_command(
    user: Annotated[str | None, typer.Option(help="ID of the user.")] = None,
    history: Annotated[
        list[str] | None,
        typer.Option(
            "--history", help="ID of an item that the user took, oldest first; may be repeated."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many items.")] = 10,
    run: Annotated[
        str | None,
        typer.Option(help="Model of a run (run id, day, `:ROLE`) instead of the champion."),
    ] = None,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Recommend what the user has taken, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    settings: SetOption = None,
) -> None:
    """Show what a model recommends to a user, or to anybody with a given history.

    A user that the model does not know is served from --history, and without one from
    popularity.
    """
    from tasks.recommend import recommend, show

    found = recommend(
        load_config(config, settings or ()),
        user=user,
        history=history,
        k=k,
        run=run,
        exclude_seen=not include_seen,
    )
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        show(found)
