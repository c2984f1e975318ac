"""Reads a pipeline's YAML file; every mistake is reported with its line and the nearest key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tasks.config import PipelineConfig
from tasks.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """YAML in which only `true` and `false` are booleans, so that `logq: off` is a word."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Reads a pipeline configuration.

    Args:
        path: The YAML file.
        overrides: `key.path=value` settings that replace the file's; values are YAML, and a `*`
            in the path stands for every entry.

    Raises:
        ConfigError: Names the file, the line and the key.
    """
    return load_yaml(path, PipelineConfig, overrides)


def load_yaml(path: str | Path, model: type[Model], overrides: Sequence[str] = ()) -> Model:
    """Reads a YAML file into a pydantic model, reporting mistakes with their lines."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration: {error.strerror}",
            where=str(path),
            fix="give the path of a YAML file, for example conf/demo.yaml",
        ) from error
    try:
        root = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"not valid YAML: {problem}", where=line, fix="correct it") from error
    if not isinstance(data, dict):
        raise ConfigError(
            "the file holds no settings", where=str(path), fix="write `key: value` lines"
        )
    duplicate = _duplicate_key(root)
    if duplicate is not None:
        key, line_number = duplicate
        raise ConfigError(
            f"key '{key}' is given twice", where=f"{path}:{line_number}", fix="keep one of them"
        )
    for override in overrides:
        _apply(data, override)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _explain(error, path, root, model, overrides) from error


def _apply(data: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"not a setting: '{override}'", where="--set", fix="write key.path=value")
    _set(data, key.split("."), yaml.load(value, Loader=_Loader), f"--set {override}")


def _set(node: dict[str, Any], keys: Sequence[str], value: Any, where: str) -> None:
    """Sets one value; `*` stands for every entry, as in `tables.*.dim`."""
    first, *rest = keys
    for key in list(node) if first == "*" else [first]:
        if not rest:
            node[key] = value
            continue
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(
                f"'{key}' holds a value, not settings", where=where, fix="shorten the key"
            )
        _set(child, rest, value, where)


def _explain(
    error: ValidationError,
    path: Path,
    root: yaml.Node | None,
    model: type[BaseModel],
    overrides: Sequence[str],
) -> ConfigError:
    first = error.errors()[0]
    loc = first["loc"]
    key = ".".join(str(part) for part in loc) or "(top level)"
    culprits = [text for text in overrides if _names(text.partition("=")[0].split("."), loc)]
    where = f"--set {culprits[-1]}" if culprits else f"{path}:{_line_of(root, loc)} key {key}"
    if first["type"] == "extra_forbidden":
        parent = _model_at(model, loc[:-1])
        known = list(parent.model_fields) if parent else []
        near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
        fix = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(sorted(known))}"
        return ConfigError(f"unknown key '{loc[-1]}'", where=where, fix=fix)
    message = first["msg"].removeprefix("Value error, ")
    given = first.get("input")
    shown = "" if isinstance(given, dict | list) or given is None else f" (given: {given!r})"
    more = f"; {error.error_count() - 1} more after this one" if error.error_count() > 1 else ""
    return ConfigError(f"{message}{shown}", where=where, fix=f"correct the value{more}")


def _names(keys: Sequence[str], loc: Sequence[Any]) -> bool:
    """Whether an override's path leads to `loc` or to something above it."""
    matches = (key in ("*", str(part)) for key, part in zip(keys, loc, strict=False))
    return len(keys) <= len(loc) and all(matches)


def _line_of(root: yaml.Node | None, loc: Sequence[Any]) -> int:
    """Line of the deepest node on the way to `loc` that the file has."""
    node = root
    line = 1
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                if key_node.value == str(part):
                    line = key_node.start_mark.line + 1
                    node = value_node
                    break
            else:
                break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _duplicate_key(node: yaml.Node | None) -> tuple[str, int] | None:
    """First key that a mapping of the file repeats; YAML readers silently keep the last."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key_node, value_node in node.value:
            if key_node.value in seen:
                return key_node.value, key_node.start_mark.line + 1
            seen.add(key_node.value)
            found = _duplicate_key(value_node)
            if found:
                return found
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            found = _duplicate_key(child)
            if found:
                return found
    return None


def _model_at(model: type[BaseModel], loc: Sequence[Any]) -> type[BaseModel] | None:
    """The pydantic model that owns the keys below `loc`."""
    current: type[BaseModel] | None = model
    for part in loc:
        if current is None:
            return None
        if part in current.model_fields:
            current = _inner_model(current.model_fields[str(part)].annotation)
        # Keys of a dict field and indices of a list field keep the element's model.
    return current


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None
