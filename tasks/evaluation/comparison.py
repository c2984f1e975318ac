"""Comparison of models from their per-user rows: differences with bootstrap intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Literal

import numpy as np
from pydantic import Field

from models.bootstrap import paired_bootstrap
from models.config import Settings
from models.metrics import Floats
from tasks.errors import ConfigError

Verdict = Literal["better", "worse", "unclear"]

_CUTOFF = re.compile(r"^(recall|ndcg|mrr)_at_(\d+)$")
_PARTS = ("head", "torso", "tail", "new", "new_users")


class ModelSummary(Settings):
    """One model in a comparison."""

    name: str
    """`candidate`, `champion`, a baseline, or what the reader called it."""
    kind: str
    """`two_tower`, `traditional` or `popularity`."""
    run_id: str
    """Tailtower run that trained it."""
    day: date
    """Day of that run."""
    version: str | None = None
    """Version in the registry, for a registered model."""
    parameters: int
    """Trained parameters."""
    bytes: int
    """Size of the bundle."""
    metrics: dict[str, float]
    """Means over the users, by metric; a metric that applies to nobody is absent."""
    curve: dict[int, float] = Field(default_factory=dict)
    """Mean recall by cut-off."""
    frequency: tuple[dict[str, int], ...] = ()
    """Targets and hits by the train count of the target item."""


class Difference(Settings):
    """Candidate minus another model in one metric."""

    candidate: float
    """Mean of the candidate over the users of this difference."""
    other: float
    """Mean of the other model over the same users (all its users when not paired)."""
    difference: float
    """Candidate minus the other."""
    lower: float
    """Lower bound of the interval."""
    upper: float
    """Upper bound of the interval."""
    p_value: float
    """Two-sided."""
    users: int
    """Users that both were measured on."""

    @property
    def verdict(self) -> Verdict:
        """What the interval says."""
        if self.lower > 0:
            return "better"
        return "worse" if self.upper < 0 else "unclear"


class ModelComparison(Settings):
    """A candidate against other models."""

    run_id: str
    """Run of the candidate."""
    day: date
    """Day of that run."""
    test_days: tuple[date, ...]
    """Days that were tested on."""
    metric: str
    """The metric that decides."""
    users: int
    """Test users of the candidate."""
    items: int
    """Items of the corpus."""
    confidence: float
    """Level of the intervals."""
    samples: int
    """Bootstrap resamples."""
    paired: bool
    """Whether differences are over the same users; if not, users are resampled apart."""
    models: tuple[ModelSummary, ...]
    """The candidate first."""
    differences: dict[str, dict[str, Difference]]
    """By the other model's name, then by metric."""

    @property
    def candidate(self) -> ModelSummary:
        """The first model."""
        return self.models[0]

    def model(self, name: str) -> ModelSummary | None:
        """A model by name."""
        return next((model for model in self.models if model.name == name), None)

    @property
    def headline(self) -> list[str]:
        """Metrics worth a row of a table, the deciding one first."""
        return headline_metrics(self.metric, self.candidate.metrics)


def cutoff(metric: str) -> int:
    """The k of a metric's name.

    Raises:
        ConfigError: The name is not `recall_at_K`, `ndcg_at_K` or `mrr_at_K`.
    """
    match = _CUTOFF.match(metric)
    if match is None:
        raise ConfigError(
            f"'{metric}' is no metric that can decide",
            where="gate.metric",
            fix="write recall_at_K, ndcg_at_K or mrr_at_K with K from evaluation.k",
        )
    return int(match.group(2))


def headline_metrics(metric: str, known: Mapping[str, Any]) -> list[str]:
    """Rows of a comparison: the deciding metric, its relatives, and recall of each part."""
    k = cutoff(metric)
    others = sorted(
        {int(m.group(2)) for name in known if (m := _CUTOFF.match(name)) and int(m.group(2)) != k}
    )
    names = [
        metric,
        f"recall_at_{k}",
        *(f"recall_at_{k}/{part}" for part in _PARTS),
        f"ndcg_at_{k}",
        f"mrr_at_{k}",
        *(f"recall_at_{other}" for other in others),
        f"coverage_at_{k}",
    ]
    return [name for name in dict.fromkeys(names) if name in known]


def paired_differences(
    candidate: Mapping[str, Floats],
    other: Mapping[str, Floats],
    metrics: Sequence[str],
    *,
    samples: int,
    confidence: float,
) -> dict[str, Difference]:
    """Candidate minus another model on the same users, for each metric that both have.

    Args:
        candidate: Values of each user by metric, `[U]`.
        other: The same users in the same order.
        metrics: Metrics wanted; those without any user are left out.
        samples: Bootstrap resamples.
        confidence: Level of the intervals.
    """
    differences = {}
    for name in metrics:
        if name not in candidate or name not in other:
            continue
        a, b = candidate[name], other[name]
        if not bool((np.isfinite(a) & np.isfinite(b)).any()):
            continue
        found = paired_bootstrap(a, b, samples=samples, confidence=confidence)
        differences[name] = Difference(
            candidate=found.mean_a,
            other=found.mean_b,
            difference=found.difference,
            lower=found.lower,
            upper=found.upper,
            p_value=found.p_value,
            users=found.users,
        )
    return differences


def unpaired_differences(
    candidate: Mapping[str, Floats],
    other: Mapping[str, Floats],
    metrics: Sequence[str],
    *,
    samples: int,
    confidence: float,
    seed: int = 0,
) -> dict[str, Difference]:
    """Candidate minus another model measured on other users, which are resampled apart.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), section 8.3.
    """
    differences = {}
    for name in metrics:
        if name not in candidate or name not in other:
            continue
        a, b = (values[np.isfinite(values)] for values in (candidate[name], other[name]))
        if not (a.size and b.size):
            continue
        generator = np.random.default_rng(seed)
        means = _resampled_means(a, samples, generator) - _resampled_means(b, samples, generator)
        tail = (1 - confidence) / 2
        lower, upper = np.quantile(means, [tail, 1 - tail])
        below = (np.count_nonzero(means <= 0) + 1) / (samples + 1)
        above = (np.count_nonzero(means >= 0) + 1) / (samples + 1)
        differences[name] = Difference(
            candidate=float(a.mean()),
            other=float(b.mean()),
            difference=float(a.mean() - b.mean()),
            lower=float(lower),
            upper=float(upper),
            p_value=min(1.0, 2 * min(below, above)),
            users=int(min(a.size, b.size)),
        )
    return differences


def _resampled_means(values: Floats, samples: int, generator: np.random.Generator) -> Floats:
    block = max(1, (1 << 22) // values.size)
    means = np.empty(samples)
    for start in range(0, samples, block):
        shape = (min(block, samples - start), values.size)
        chosen = generator.integers(0, values.size, shape)
        means[start : start + block] = values[chosen].mean(1)
    return means
