"""Which model is served: the registry's aliases, and the pointer in the lake that follows them."""

from __future__ import annotations

import json
from typing import Any

from tasks import tracking
from tasks.config import PipelineConfig
from tasks.errors import ConfigError
from tasks.lake import Lake, Published
from tasks.run_spec import ModelReference
from tasks.serving.bundles import find_served
from tasks.tracking import registry

POINTER = "models/champion.json"
"""Lake path of the file that says which bundle is served."""


def make_champion(config: PipelineConfig, version: str) -> None:
    """Points `champion` at a version, and `previous` at the one that had it.

    The old champion is named `previous` before `champion` moves: whoever stops in between loses
    no name. Repeating it changes nothing.
    """
    now = tracking.current_champion(config)
    if now is None or now.version != version:
        if now is not None:
            registry.set_alias(config, registry.PREVIOUS, now.version)
        registry.set_alias(config, registry.CHAMPION, version)


def is_champion(config: PipelineConfig, version: str) -> bool:
    """Whether a version is served now."""
    now = tracking.current_champion(config)
    return now is not None and now.version == version


def write_pointer(config: PipelineConfig, model: ModelReference, bundle: Published) -> None:
    """Says in the lake that a model's bundle is served, and by which published form of it."""
    lake = Lake(config.lake)
    served = find_served(lake, model.run_id, bundle)
    pointer = {
        "model": config.tracking.model_name,
        "version": model.version,
        "run_id": model.run_id,
        "day": model.day.isoformat(),
        "bundle": bundle.file("bundle.json").rsplit("/", 1)[0],
        "output": bundle.path,
        "digest": bundle.digest,
        "served": None if served is None else served.path,
        "served_digest": None if served is None else served.digest,
        "files": {entry.path.split("/", 1)[-1]: entry.digest for entry in bundle.manifest.files},
    }
    lake.write_text(POINTER, json.dumps(pointer, indent=1))


def read_pointer(lake: Lake) -> dict[str, Any] | None:
    """What the pointer to the champion says; None before the first promotion."""
    if not lake.exists(POINTER):
        return None
    pointer: dict[str, Any] = json.loads(lake.read_text(POINTER))
    return pointer


def require_pointer(lake: Lake) -> dict[str, Any]:
    """What the pointer to the champion says.

    Raises:
        ConfigError: Nothing is served yet.
    """
    pointer = read_pointer(lake)
    if pointer is None:
        raise ConfigError(
            "nothing is served yet",
            where=f"{lake.url}/{POINTER}",
            fix="train a model with `tailtower run`",
        )
    return pointer
