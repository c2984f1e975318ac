"""How well a vocabulary fits its long tail, in numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.longtail.bucket_load import load_of
from tasks.longtail.vocabulary_table import Vocabulary
from tasks.longtail.window import UNIT
from tasks.longtail.window_merge import WindowSummary

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


def measure(vocabulary: Vocabulary, window: WindowSummary) -> Health:
    """Measures a vocabulary against the window it was made from."""
    # An owner may have left the window.
    own = vocabulary.table.filter(pl.col("count") > 0).select(
        "id", (pl.col("count") * UNIT).cast(pl.Int64).alias("units")
    )
    sums = window.sums
    total, covered = sums.units, int(own["units"].sum() or 0)
    full = sums.ids + 1
    own_ids, own_units = load_of(own, vocabulary.policy)
    load_ids, load_units = sums.load[0] - own_ids, sums.load[1] - own_units
    changes = vocabulary.changes
    facts = {
        "ids": sums.ids,
        "ids_with_row": own.height,
        "owners": vocabulary.table.height,
        "ids_in_tail": sums.ids - own.height,
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
        "bucket_ids": _spread(load_ids),
        "bucket_events": _spread(load_units / UNIT),
    }
    ranks = np.unique(np.geomspace(1, max(sums.ids, 1), _POINTS).round().astype(np.int64))
    ranks = ranks[: sums.ids]
    values, numbers = sums.histogram
    last_ranks = np.cumsum(numbers[::-1])
    counts = values[::-1][np.searchsorted(last_ranks, ranks)] / UNIT
    return Health(
        facts,
        curve={"rank": ranks.tolist(), "count": counts.round(6).tolist()},
        buckets={"ids": load_ids.tolist(), "events": (load_units / UNIT).tolist()},
    )


def _spread(values: npt.NDArray[Any]) -> dict[str, float]:
    return {
        "min": round(float(values.min()), 3),
        "mean": round(float(values.mean()), 3),
        "max": round(float(values.max()), 3),
    }
