"""Reading per-user rows: metrics of every user, and their means. Needs no torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]

_TARGETS = "targets_"


def rows_of(rows: pa.Table, model: str) -> pa.Table:
    """Rows of one model out of the rows of several."""
    return rows.filter(pc.equal(rows.column("model"), model))


def metrics_of(rows: pa.Table) -> dict[str, Floats]:
    """The metrics of each user, from per-user rows of one model (see `measurement.measure`).

    Returns:
        Arrays `[U]`: `recall_at_k`, `ndcg_at_k`, `mrr_at_k`, and recall on a part of the targets
        or users as `recall_at_k/<part>` with the parts head, torso, tail, new (items) and
        `new_users`; NaN for users that a part does not apply to.
    """
    metrics: dict[str, Floats] = {}
    for name in rows.column_names:
        if name.startswith(("recall_at_", "ndcg_at_", "mrr_at_")):
            metrics[name] = _floats(rows, name)
    parts = [n.removeprefix(_TARGETS) for n in rows.column_names if n.startswith(_TARGETS)]
    fresh = rows.column("train_count").to_numpy() == 0
    for name in [n for n in metrics if n.startswith("recall_at_")]:
        k = name.removeprefix("recall_at_")
        for part in parts:
            hits, wanted = _floats(rows, f"hits_at_{k}_{part}"), _floats(rows, f"targets_{part}")
            recall = np.full(len(hits), np.nan)
            np.divide(hits, wanted, out=recall, where=wanted > 0)
            metrics[f"{name}/{part}"] = recall
        metrics[f"{name}/new_users"] = np.where(fresh, metrics[name], np.nan)
    return metrics


def aggregates(rows: pa.Table) -> dict[str, float]:
    """Mean of each metric over the users that it applies to; without those that apply to none."""
    applied = {name: values[np.isfinite(values)] for name, values in metrics_of(rows).items()}
    return {name: float(values.mean()) for name, values in applied.items() if values.size}


def _floats(rows: pa.Table, name: str) -> Floats:
    return np.asarray(rows.column(name).to_numpy(), dtype=np.float64)
