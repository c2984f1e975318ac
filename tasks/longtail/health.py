"""How well a vocabulary fits its long tail, in numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tasks.longtail.id_hash import tail_buckets
from tasks.longtail.vocabulary_table import Vocabulary
from tasks.longtail.window import UNIT

_POINTS = 300


@dataclass(frozen=True)
class Health:
    """Health of a vocabulary.

    Attributes:
        facts: Numbers for the manifest.
        curve: Decayed count (`count`) of the IDs at log-spaced ranks (`rank`).
        buckets: IDs (`ids`) and occurrences (`events`) of each tail bucket, the first one first.
    """

    facts: dict[str, Any]
    curve: dict[str, list[float]]
    buckets: dict[str, list[float]]

    def to_json(self) -> bytes:
        """Everything, for people and for the picture."""
        body = {"facts": self.facts, "curve": self.curve, "buckets": self.buckets}
        return json.dumps(body, separators=(",", ":")).encode()


def measure(vocabulary: Vocabulary, window: pl.DataFrame) -> Health:
    """Measures a vocabulary against the window it was made from.

    Args:
        vocabulary: The vocabulary.
        window: `id`, `units`, `last_seen` of every ID of the window.
    """
    own = window.join(vocabulary.table.select("id"), on="id", how="semi")
    tail = window.join(vocabulary.table.select("id"), on="id", how="anti")
    total = int(window["units"].sum() or 0)
    covered = int(own["units"].sum() or 0)
    full = window.height + 1
    load = bucket_load(vocabulary, tail)
    changes = vocabulary.changes
    facts = {
        "ids": window.height,
        "ids_with_row": own.height,
        "owners": vocabulary.table.height,
        "ids_in_tail": tail.height,
        "events": round(total / UNIT, 3),
        "covered_share": round(covered / total, 6) if total else None,
        "rows": vocabulary.rows,
        "rows_full_table": full,
        "rows_saved": full - vocabulary.rows,
        "rows_saved_share": round(1 - vocabulary.rows / full, 6),
        "kept": changes.kept,
        "promoted": changes.promoted,
        "demoted": changes.demoted,
        "new_rows": changes.new_rows,
        "reused_rows": changes.reused_rows,
        "bucket_ids": _spread(load["ids"]),
        "bucket_events": _spread(load["units"] / UNIT),
    }
    counts = np.sort(window["units"].to_numpy())[::-1] / UNIT
    ranks = np.unique(np.geomspace(1, max(counts.size, 1), _POINTS).round().astype(np.int64))
    ranks = ranks[: counts.size]
    return Health(
        facts,
        curve={"rank": ranks.tolist(), "count": counts[ranks - 1].round(6).tolist()},
        buckets={"ids": load["ids"].to_list(), "events": (load["units"] / UNIT).to_list()},
    )


def bucket_load(vocabulary: Vocabulary, tail: pl.DataFrame) -> pl.DataFrame:
    """IDs and occurrences in each tail bucket: `bucket`, `ids`, `units`, ordered by bucket."""
    policy = vocabulary.policy
    every = pl.DataFrame({"bucket": pl.int_range(1, policy.tail_buckets + 1, eager=True)})
    every = every.cast(pl.Int32)
    placed = [
        tail.select(bucket.alias("bucket"), "units")
        for bucket in tail_buckets(
            tail["id"], buckets=policy.tail_buckets, hashes=policy.hashes, seed=policy.seed
        )
    ]
    load = pl.concat(placed).group_by("bucket").agg(pl.len().alias("ids"), pl.col("units").sum())
    return every.join(load, on="bucket", how="left").fill_null(0).sort("bucket")


def _spread(values: pl.Series) -> dict[str, float]:
    array = values.to_numpy()
    return {
        "min": round(float(array.min()), 3),
        "mean": round(float(array.mean()), 3),
        "max": round(float(array.max()), 3),
    }
