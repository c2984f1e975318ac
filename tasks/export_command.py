"""`tailtower export-items` and `export-towers`: the champion for programs of one's own."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config_file import load_config


def export_items_command(
    run_spec: Annotated[
        str | None,
        typer.Option(help="Location of a run_spec.json; its pipeline instead of --config."),
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    settings: SetOption = None,
) -> None:
    """Write the champion's item vectors to Parquet, under `serving/items/` of the lake.

    The last line on standard output says where, as JSON.
    """
    from tasks.export_items import export_items
    from tasks.lake import Lake
    from tasks.run_spec import load_run_spec

    loaded = load_run_spec(run_spec).config if run_spec else load_config(config, settings or ())
    published = export_items(loaded)
    (file,) = published.tables()
    facts = {"file": f"{Lake(loaded.lake).url}/{file}", **published.manifest.meta}
    print(json.dumps({"facts": facts}))


def export_towers_command(
    config: ConfigOption = DEFAULT_CONFIG,
    settings: SetOption = None,
) -> None:
    """Write the champion's towers as ONNX, under `serving/towers/` of the lake.

    Needs the extra `onnx`. Each file names the providers of ONNX Runtime for accelerators and for
    CPUs. The last line on standard output says where, and how far they are from training, as JSON.
    """
    from tasks.export_towers import export_towers
    from tasks.lake import Lake

    loaded = load_config(config, settings or ())
    published = export_towers(loaded)
    files = [f"{Lake(loaded.lake).url}/{path}" for path in published.files()]
    print(json.dumps({"facts": {"files": files, **published.manifest.meta}}))
