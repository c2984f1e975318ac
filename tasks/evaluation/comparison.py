"""Comparison of models from their per-user rows: differences with bootstrap intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from models.config import Settings
from tasks.errors import ConfigError
from tasks.evaluation.per_user import Floats

Verdict = Literal["better", "worse", "unclear"]

_CUTOFF = re.compile(r"^(recall|ndcg|mrr)_at_(\d+)$")
_BLOCK = 1 << 22  # resampled values held at once
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
    continues: str | None = None
    """Run whose model its training started from; None for a training from the start."""
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
    seed: int = 0,
) -> dict[str, Difference]:
    """Candidate minus another model on the same users, for each metric that both have.

    All metrics share the resamples of the users, so a resample costs one draw and one row of a
    matrix product however many metrics there are. A metric that applies to some users only is
    averaged over those of them that a resample holds. Source: Efron and Tibshirani, "An
    Introduction to the Bootstrap" (1993), chapter 13; `models.bootstrap` does one metric alone.

    Args:
        candidate: Values of each user by metric, `[U]`; NaN where it does not apply.
        other: The same users in the same order.
        metrics: Metrics wanted; those without any user are left out.
        samples: Bootstrap resamples.
        confidence: Level of the intervals.
        seed: Seed of the resampling.
    """
    pairs = {n: (candidate[n], other[n]) for n in metrics if n in candidate and n in other}
    applies = {n: np.isfinite(a) & np.isfinite(b) for n, (a, b) in pairs.items()}
    names = [name for name in pairs if applies[name].any()]
    if not names:
        return {}
    valid = np.stack([applies[name] for name in names], axis=1)
    delta = np.stack([pairs[name][0] - pairs[name][1] for name in names], axis=1)
    delta[~valid] = 0.0
    means = _resampled_differences(delta, valid, samples, np.random.default_rng(seed))
    differences = {}
    for column, name in enumerate(names):
        a, b = (values[applies[name]] for values in pairs[name])
        lower, upper, p_value = _interval(means[:, column], confidence)
        differences[name] = Difference(
            candidate=float(a.mean()),
            other=float(b.mean()),
            difference=float((a - b).mean()),
            lower=lower,
            upper=upper,
            p_value=p_value,
            users=int(a.size),
        )
    return differences


def _resampled_differences(
    delta: Floats, valid: npt.NDArray[np.bool_], samples: int, generator: np.random.Generator
) -> Floats:
    """Mean of each column in each resample of the rows, `[samples, M]`; NaN without any value.

    Args:
        delta: Differences `[U, M]`, 0 where they do not apply.
        valid: Where they apply, `[U, M]`.
        samples: Number of resamples.
        generator: Source of randomness.
    """
    users, columns = delta.shape
    stacked = np.concatenate([delta, valid], axis=1)
    block = max(1, _BLOCK // users)
    means = np.empty((samples, columns))
    for start in range(0, samples, block):
        stop = min(start + block, samples)
        chosen = generator.integers(0, users, (stop - start, users))
        chosen += np.arange(stop - start)[:, None] * users
        counts = np.bincount(chosen.ravel(), minlength=(stop - start) * users)
        sums = counts.reshape(-1, users).astype(np.float64) @ stacked
        with np.errstate(invalid="ignore"):
            means[start:stop] = sums[:, :columns] / sums[:, columns:]
    return means


def _interval(means: Floats, confidence: float) -> tuple[float, float, float]:
    """Percentile interval and two-sided p-value of resampled differences."""
    means = means[np.isfinite(means)]
    tail = (1 - confidence) / 2
    lower, upper = np.quantile(means, [tail, 1 - tail])
    # The +1 keeps p above 0: so many resamples cannot show more.
    below = (np.count_nonzero(means <= 0) + 1) / (means.size + 1)
    above = (np.count_nonzero(means >= 0) + 1) / (means.size + 1)
    return float(lower), float(upper), float(min(1.0, 2 * min(below, above)))


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
        lower, upper, p_value = _interval(means, confidence)
        differences[name] = Difference(
            candidate=float(a.mean()),
            other=float(b.mean()),
            difference=float(a.mean() - b.mean()),
            lower=lower,
            upper=upper,
            p_value=p_value,
            users=int(min(a.size, b.size)),
        )
    return differences


def _resampled_means(values: Floats, samples: int, generator: np.random.Generator) -> Floats:
    block = max(1, _BLOCK // values.size)
    means = np.empty(samples)
    for start in range(0, samples, block):
        shape = (min(block, samples - start), values.size)
        chosen = generator.integers(0, values.size, shape)
        means[start : start + block] = values[chosen].mean(1)
    return means
