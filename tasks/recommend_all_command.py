"""`tailtower recommend-all`: the best items of every user, as Parquet."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config_file import load_config


def recommend_all_command(
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many items a user.")] = 100,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Recommend what a user has taken, too.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Score every item, even where there is an index.")
    ] = False,
    part_users: Annotated[
        int, typer.Option(min=1, help="Users of a file, and of what a restart does again.")
    ] = 50_000,
    config: ConfigOption = DEFAULT_CONFIG,
    settings: SetOption = None,
) -> None:
    """Write the champion's best items for every user it knows, under `serving/recommendations/`.

    The work is spread over the cluster of the section `dask`. A job that was stopped goes on where
    it was. The last line on standard output says where the files are, as JSON.
    """
    from tasks.lake import Lake
    from tasks.recommend_all import recommend_all

    loaded = load_config(config, settings or ())
    published = recommend_all(
        loaded, k=k, exclude_seen=not include_seen, exact=exact, part_users=part_users
    )
    facts = {"folder": f"{Lake(loaded.lake).url}/{published.path}", **published.manifest.meta}
    print(json.dumps({"facts": facts}))
