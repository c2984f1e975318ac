"""Comparison of the models of any runs, from their stored per-user rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import ConfigError
from tasks.evaluation.comparison import (
    ModelComparison,
    headline_metrics,
    paired_differences,
    unpaired_differences,
)
from tasks.evaluation.per_user import metrics_of, rows_of
from tasks.evaluation.stored import read_per_user, summary
from tasks.evaluation.stored_runs import NamedModel


def compare_across(models: Sequence[NamedModel]) -> ModelComparison:
    """Compares the first model with each of the others.

    Models that were measured on the same examples' test days are compared over their common
    users; others have different users and targets, so their users are resampled apart.

    Args:
        models: At least two.

    Raises:
        ConfigError: Fewer than two models, the same one twice, or a model that was not measured.
    """
    if len(models) < 2:
        raise ConfigError("a comparison needs two models", fix="give --run at least twice")
    labels = [model.label for model in models]
    if len(set(labels)) < len(labels):
        raise ConfigError("the same model is named twice", where=", ".join(labels))
    first = models[0]
    rows, facts = zip(*(_stored(model) for model in models), strict=True)
    settings = first.spec.config.evaluation
    metric = first.spec.config.gate.metric
    paired = all(model.spec.test_days == first.spec.test_days for model in models)
    differences = {}
    for label, other in zip(labels[1:], rows[1:], strict=True):
        if paired:
            ours, theirs = _common_users(rows[0], other)
        else:
            ours, theirs = rows[0], other
        a, b = metrics_of(ours), metrics_of(theirs)
        compare = paired_differences if paired else unpaired_differences
        differences[label] = compare(
            a,
            b,
            headline_metrics(metric, a),
            samples=settings.bootstrap_samples,
            confidence=settings.confidence,
        )
    meta = _meta(first)
    return ModelComparison(
        run_id=first.spec.run_id,
        day=first.spec.day,
        test_days=first.spec.test_days,
        metric=metric,
        users=rows[0].num_rows,
        items=meta["items"],
        confidence=settings.confidence,
        samples=settings.bootstrap_samples,
        paired=paired,
        models=tuple(summary(label, f) for label, f in zip(labels, facts, strict=True)),
        differences=differences,
    )


def _meta(model: NamedModel) -> dict[str, Any]:
    meta: dict[str, Any] = model.spec.output("evaluate", "evaluation").manifest.meta
    return meta


def _stored(model: NamedModel) -> tuple[pa.Table, dict[str, Any]]:
    facts = _meta(model)["models"]
    if model.role not in facts:
        raise ConfigError(
            f"run {model.spec.run_id} has no model '{model.role}'",
            fix=f"it has: {', '.join(facts)}",
        )
    evaluation = model.spec.output("evaluate", "evaluation")
    per_user = read_per_user(model.spec.lake(), evaluation)
    return rows_of(per_user, model.role), facts[model.role]


def _common_users(a: pa.Table, b: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows of the users that both have, in the order of the first."""
    theirs = b.column("user_id").combine_chunks().cast(a.column("user_id").type)
    found = pc.index_in(a.column("user_id").combine_chunks(), value_set=theirs)
    both = pc.is_valid(found)
    return a.filter(both), b.take(found.drop_null())
