"""Where each feature of the towers is read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config import FeatureSettings
from tasks.config import PipelineConfig
from tasks.errors import ConfigError

Source = Literal["key", "context", "attribute"]


@dataclass(frozen=True)
class FeaturePlan:
    """A feature and its column.

    Attributes:
        name: Name of the feature and of its column of codes.
        table: The embedding table; empty for a number.
        listed: Whether a row has any number of IDs; a key or a column of the interactions
            always has one.
        source: `key`: the user or item ID itself. `context`: a column of the interactions.
            `attribute`: a column of the side table.
        column: The column.
        numeric: Whether the column holds numbers instead of IDs.
    """

    name: str
    table: str
    listed: bool
    source: Source
    column: str
    numeric: bool = False


def user_features(config: PipelineConfig) -> tuple[FeaturePlan, ...]:
    """Features of the user tower that are encoded; histories are corpus indices instead.

    Raises:
        ConfigError: A feature would tell the user tower the item it has to predict.
    """
    plans = []
    for feature in config.model.user.features:
        if feature.kind == "history":
            continue
        if feature.kind == "numeric":
            plans.append(_number(feature))
            continue
        source = config.tables[feature.table].source
        if source == "interactions.item_id":
            raise ConfigError(
                f"feature '{feature.name}' shows the user tower the item that it must predict",
                where=f"model.user.features.{feature.name}",
                fix="make it `kind: history`",
            )
        plans.append(_plan(config, feature, "user_id", "interactions.user_id"))
    return tuple(plans)


def item_features(config: PipelineConfig) -> tuple[FeaturePlan, ...]:
    """Features of the item tower that are encoded; neighbours are corpus indices instead.

    Raises:
        ConfigError: A feature is read from a column that describes an event, not an item.
    """
    plans = []
    for feature in config.model.item.features:
        if feature.kind == "neighbours":
            continue
        if feature.kind == "numeric":
            plans.append(_number(feature))
            continue
        table = config.tables[feature.table]
        if table.dataset == "interactions" and table.column != "item_id":
            raise ConfigError(
                f"feature '{feature.name}' is no property of an item: {table.source}",
                where=f"model.item.features.{feature.name}",
                fix="read it from items.*, or give it to the user tower",
            )
        plans.append(_plan(config, feature, "item_id", "interactions.item_id"))
    return tuple(plans)


def _number(feature: FeatureSettings) -> FeaturePlan:
    return FeaturePlan(feature.name, "", False, "attribute", feature.name, numeric=True)


def _plan(
    config: PipelineConfig, feature: FeatureSettings, key: str, key_source: str
) -> FeaturePlan:
    table = config.tables[feature.table]
    if table.source == key_source:
        return FeaturePlan(feature.name, feature.table, False, "key", key)
    if table.dataset == "interactions":
        return FeaturePlan(feature.name, feature.table, False, "context", table.column)
    listed = feature.kind == "list"
    return FeaturePlan(feature.name, feature.table, listed, "attribute", feature.name)
