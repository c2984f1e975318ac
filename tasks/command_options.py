"""Options that several commands have in common, and the configuration that they start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_CONFIG = Path("conf/demo.yaml")

ConfigOption = Annotated[
    Path,
    typer.Option("--config", "-c", help="The pipeline's YAML file.", envvar="TAILTOWER_CONFIG"),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="Replace one setting, as key.path=value; may be repeated."),
]
