"""`tailtower serve`: the champion behind HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config_file import load_config


def serve_command(
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. There is no login: put a proxy before others."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8800,
    look_seconds: Annotated[
        float, typer.Option(help="Pause between two looks for a new champion.", min=0.1)
    ] = 5.0,
    config: ConfigOption = DEFAULT_CONFIG,
    settings: SetOption = None,
) -> None:
    """Answer over HTTP with the champion, and with the next one as soon as it is served.

    `/` is a page to try it, `/docs` says what can be asked, `/health` which model answers, and
    `/metrics` is for Prometheus.
    """
    import torch
    import uvicorn

    from tasks.serving.server.app import create_app
    from tasks.serving.server.champion_watch import ChampionWatch

    # Requests are answered side by side, each on one core.
    torch.set_num_threads(1)
    watch = ChampionWatch(load_config(config, settings or ()), look_seconds)
    uvicorn.run(create_app(watch), host=host, port=port, access_log=False)
