"""Makes the pipeline file for a log of one's own from what was ingested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tasks.lake import Lake

#: Columns of an items or users table that are no features.
_NOT_FEATURES = {"item_id", "user_id", "title", "timestamp"}
_FOLDER = Path("var/pipelines")


def write_own_pipeline(template: Path, name: str, lake: Lake) -> Path:
    """Writes `var/pipelines/<name>.yaml`: the template's settings and the lake's attributes.

    Every text, integer or list column of the lake's items and users tables becomes a feature
    with an embedding table of its own. The file is the user's to edit; an existing one is kept.

    Args:
        template: Pipeline file with the settings to start from.
        name: Name of the pipeline.
        lake: The lake that was ingested into.
    """
    path = _FOLDER / f"{name}.yaml"
    if path.exists():
        return path
    settings = yaml.safe_load(template.read_text(encoding="utf-8"))
    settings |= {"name": name, "lake": lake.url}
    settings["tracking"] = {"experiment": f"tailtower-{name}", "model_name": f"tailtower-{name}"}
    for tower, dataset in (("user", "users"), ("item", "items")):
        for column, kind in sorted(_attributes(lake, f"raw/{dataset}").items()):
            table = column if column not in settings["tables"] else f"{tower}_{column}"
            settings["tables"][table] = _table(f"{dataset}.{column}")
            feature: dict[str, Any] = {"name": column, "table": table, "kind": kind}
            settings["model"][tower]["features"].append(feature)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"# Made from {template} and the attributes of the ingested data; yours to edit.\n"
    path.write_text(head + yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return path


def _table(source: str) -> dict[str, Any]:
    return {"source": source, "dim": 16, "vocabulary": {"min_count": 2, "tail_buckets": 16}}


def _attributes(lake: Lake, dataset: str) -> dict[str, str]:
    """Feature kind of each usable column of a side table."""
    found = {}
    for day in lake.days(dataset)[:1]:
        partition = lake.partition(dataset, day)
        if partition is None:
            continue
        with lake.open_input(partition.files()[0]) as stream:
            schema = pq.read_schema(stream)
        for field in schema:
            kind = _kind(field.type)
            if field.name not in _NOT_FEATURES and kind is not None:
                found[field.name] = kind
    return found


def _kind(data_type: pa.DataType) -> str | None:
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return "list" if _kind(data_type.value_type) == "id" else None
    text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    return "id" if text or pa.types.is_integer(data_type) else None
