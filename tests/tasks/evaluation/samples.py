"""Comparisons made by hand for the tests of the gate and the report."""

from __future__ import annotations

from datetime import date
from typing import Any

from tasks.evaluation.comparison import Difference, ModelComparison, ModelSummary

DAY = date(2026, 1, 5)


def difference(candidate: float, other: float, lower: float, upper: float) -> Difference:
    return Difference(
        candidate=candidate,
        other=other,
        difference=candidate - other,
        lower=lower,
        upper=upper,
        p_value=0.04,
        users=90,
    )


def model(name: str, *, recall: float, **changes: Any) -> ModelSummary:
    metrics = {
        "recall_at_20": recall,
        "recall_at_20/tail": 0.05,
        "coverage_at_20": 0.4,
        "ndcg_at_20": recall / 2,
    }
    body: dict[str, Any] = {
        "name": name,
        "kind": "popularity" if name == "popularity" else "two_tower",
        "run_id": f"{DAY}-abc",
        "day": DAY,
        "parameters": 1000,
        "bytes": 4096,
        "metrics": metrics | changes.pop("metrics", {}),
        "curve": {1: recall / 4, 10: recall / 2, 20: recall},
        "frequency": (
            {"from": 0, "items": 3, "targets": 4, "hits": 1},
            {"from": 1, "items": 2, "targets": 8, "hits": 6},
        ),
    }
    return ModelSummary.model_validate(body | changes)


def comparison(third: ModelSummary | None = None, /, **differences: Difference) -> ModelComparison:
    """A candidate with recall 0.2 against popularity and perhaps a third model."""
    models = [model("candidate", recall=0.2), model("popularity", recall=0.1)]
    if third is not None:
        models.append(third)
    return ModelComparison(
        run_id=f"{DAY}-abc",
        day=DAY,
        test_days=(DAY,),
        metric="recall_at_20",
        users=100,
        items=500,
        confidence=0.95,
        samples=2000,
        paired=True,
        models=tuple(models),
        differences={
            name: {"recall_at_20": found, "ndcg_at_20": difference(0.1, 0.1, -0.1, 0.1)}
            for name, found in differences.items()
        },
    )
