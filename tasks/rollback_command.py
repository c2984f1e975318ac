"""`tailtower rollback`: serve an earlier model again."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config_file import load_config


def rollback_command(
    reason: Annotated[str, typer.Option(help="Why; kept with the version that is left.")],
    to: Annotated[
        str | None, typer.Option(help="Version to serve; default: the champion before this one.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who does it; default: the login name.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    settings: SetOption = None,
) -> None:
    """Take the champion back and serve an earlier version again.

    Moves the registry's alias and the pointer in the lake. The next day's candidate is compared
    with the version that is served then.
    """
    from tasks.progress import console
    from tasks.rollback import roll_back

    done = roll_back(
        load_config(config, settings or ()),
        reason=reason,
        by=by or getpass.getuser(),
        version=to,
    )
    console.print(
        f"version {done.now.version} of {done.now.day} is served; "
        f"version {done.left.version} of {done.left.day} was taken back",
        highlight=False,
        soft_wrap=True,
    )
