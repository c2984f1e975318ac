"""The served model as an asset, for the DAGs that depend on it."""

from airflow.sdk import Asset, AssetAlias

CHAMPION = Asset(name="tailtower_champion", uri="x-tailtower://champion")
"""The served model. An event means that it changed; its extra says to which run, version and
day."""

CHAMPION_OUTLET = AssetAlias("tailtower_champion_update")
"""What publishes `CHAMPION`: an alias, because a run that promotes nothing must emit nothing."""
