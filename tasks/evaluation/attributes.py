"""Raw attributes of the test users, for models that encode them by their own vocabularies."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from models.config import FeatureSettings
from tasks.longtail.columns import to_arrow
from tasks.longtail.example_inputs import gather_inputs
from tasks.longtail.features import FeaturePlan
from tasks.longtail.side_tables import newest_rows
from tasks.run_spec import RunSpec


def user_attributes(
    spec: RunSpec, features: Sequence[FeatureSettings], user_ids: pa.Array
) -> dict[str, pa.Array]:
    """Newest raw values of the attributes that a user tower reads, as the test examples take them.

    Args:
        spec: The run.
        features: Features of the user tower; those that are no attribute are passed over.
        user_ids: Raw IDs `[U]`.

    Returns:
        For each attribute an array `[U]`, null where a user has none.
    """
    tables = spec.config.tables
    plans = [
        FeaturePlan(
            f.name, f.table, f.kind == "list", "attribute", f.name, numeric=f.kind == "numeric"
        )
        for f in features
        if f.kind == "numeric"
        or (f.kind != "history" and f.table in tables and tables[f.table].dataset == "users")
    ]
    if not plans:
        return {}
    newest = newest_rows(spec.lake(), "users", gather_inputs(spec).users_until, "user_id", plans)
    users = pl.DataFrame({"user_id": pl.from_arrow(user_ids)})
    users = users.cast({"user_id": newest.schema["user_id"]})
    joined = to_arrow(users.join(newest, on="user_id", how="left", maintain_order="left"))
    return {plan.name: joined.column(plan.column).combine_chunks() for plan in plans}
