"""Taking a champion back: an earlier version is served again, and everybody can read why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tasks import tracking
from tasks.config import PipelineConfig
from tasks.errors import ConfigError
from tasks.lake import Lake
from tasks.promotion import make_champion, write_pointer
from tasks.run_spec import ModelReference
from tasks.tracking import registry

ROLLED_BACK = "tailtower.rolled_back"
"""Tag of a version that was taken back: when, by whom and why."""


@dataclass(frozen=True)
class Rollback:
    """What a rollback did."""

    left: ModelReference
    """The version that was served."""
    now: ModelReference
    """The version that is served."""


def roll_back(
    config: PipelineConfig, *, reason: str, by: str, version: str | None = None
) -> Rollback:
    """Serves an earlier version again.

    The version that is left becomes `previous` and is tagged with the reason. It is not taken
    as a target later on unless it is named.

    Args:
        config: The pipeline.
        reason: Why; kept with the version that is left.
        by: Who does it.
        version: Which version to serve; by default the alias `previous`.

    Raises:
        ConfigError: Nothing is served, or there is no version to go back to.
        LakeError: The lake no longer has the version's bundle; nothing was changed.
        TrackingError: The registry cannot be reached.
    """
    name = config.tracking.model_name
    left = tracking.current_champion(config)
    if left is None:
        raise ConfigError(
            "nothing is served yet, so there is nothing to take back",
            where=f"models:/{name}@{registry.CHAMPION}",
            fix="promote a model first",
        )
    target = _target(config, version)
    if target.version == left.version:
        raise ConfigError(
            f"version {left.version} is served already",
            where=f"models:/{name}@{registry.CHAMPION}",
            fix="name another one with --to",
        )
    bundle = Lake(config.lake).open_published(target.bundle)
    make_champion(config, target.version)
    write_pointer(config, target, bundle)
    note = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by {by}: {reason}"
    registry.set_version_tags(config, left.version, {ROLLED_BACK: note})
    return Rollback(left, target)


def _target(config: PipelineConfig, version: str | None) -> ModelReference:
    name = config.tracking.model_name
    if version is not None:
        return registry.by_version(config, version)
    found = registry.by_alias(config, registry.PREVIOUS)
    if found is None:
        raise ConfigError(
            "there was no champion before this one",
            where=f"models:/{name}@{registry.PREVIOUS}",
            fix="name a version with --to",
        )
    taken_back = registry.version_tags(config, found.version).get(ROLLED_BACK)
    if taken_back:
        raise ConfigError(
            f"the champion before, version {found.version}, was taken back itself: {taken_back}",
            where=f"models:/{name}/{found.version}",
            fix="name a version with --to",
        )
    return found
