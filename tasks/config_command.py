"""`tailtower config`: the configuration reference, from the settings' own documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.table import Table

from tasks.config import PipelineConfig
from tasks.progress import console


def config_command(
    file: Annotated[
        Path | None, typer.Argument(help="Check this file and print it with every default.")
    ] = None,
    markdown: Annotated[bool, typer.Option(help="Print the reference as Markdown.")] = False,
) -> None:
    """Print every setting with its meaning and default, or check a configuration file."""
    if file is not None:
        import yaml

        from tasks.config_file import load_config

        print(yaml.safe_dump(load_config(file).model_dump(mode="json"), sort_keys=False))
        return
    if markdown:
        print(markdown_page(), end="")
        return
    table = Table("key", "type", "default", "meaning", title="Settings of a pipeline")
    for row in reference():
        table.add_row(*row)
    console.print(table)


def markdown_page() -> str:
    """The reference as the page `docs/configuration.md`."""
    lines = [
        "# Configuration",
        "",
        "Made by `tailtower config --markdown` from the settings' declarations in",
        "[tasks/config.py](../tasks/config.py) and [models/config.py](../models/config.py).",
        "`<name>` stands for a name of your own, `[]` for the entries of a list.",
        "",
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{key}` | {kind} | {f'`{default}`' if default else ''} | {meaning} |"
        for key, kind, default, meaning in reference()
    ]
    return "\n".join(lines) + "\n"


def reference(
    model: type[BaseModel] = PipelineConfig, prefix: str = ""
) -> Iterator[tuple[str, str, str, str]]:
    """Yields key, type, default and meaning of every setting, depth first."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        inner, suffix = _inner(field.annotation)
        meaning = " ".join((field.description or "").split())
        if inner is None:
            yield key, _type_name(field.annotation), _default(field), meaning
        else:
            yield f"{key}{suffix}", "settings", "", meaning
            yield from reference(inner, f"{key}{suffix}.")


_SUFFIXES = {dict: ".<name>", UnionType: ""}


def _inner(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The settings class inside an annotation and how its keys are reached."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    origin = get_origin(annotation)
    for argument in get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, BaseModel):
            return argument, _SUFFIXES.get(origin, "[]")
    return None, ""


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    text = re.sub(r"\b(typing|datetime|pydantic\.types)\.", "", str(annotation))
    if text.startswith("Literal["):
        return " or ".join(str(value) for value in get_args(annotation))
    return text.replace(" | ", " or ")


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, tuple):
        return "[" + ", ".join(map(str, field.default)) + "]"
    return str(field.default)
