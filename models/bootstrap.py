"""Paired bootstrap over users: is one model better than another on the same users?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 22  # resampled values held at once


@dataclass(frozen=True)
class Comparison:
    """Difference of the means of two models, with its interval.

    Attributes:
        mean_a: Mean of the first model.
        mean_b: Mean of the second model.
        difference: `mean_a - mean_b`.
        lower: Lower bound of the percentile interval.
        upper: Upper bound of the percentile interval.
        p_value: Two-sided, `2 · min(P(d* <= 0), P(d* >= 0))`.
        users: Users that both models were measured on.
        confidence: Level of the interval.
    """

    mean_a: float
    mean_b: float
    difference: float
    lower: float
    upper: float
    p_value: float
    users: int
    confidence: float


def paired_bootstrap(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    samples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Resamples users with replacement and compares the two models on the same resample.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 13 and 15.

    Args:
        a: A metric of the first model, one value a user `[U]`; NaN where it does not apply.
        b: The same metric and users for the second model `[U]`.
        samples: Resamples.
        confidence: Level of the interval.
        seed: Seed of the resampling.

    Raises:
        ValueError: The two differ in length, or no user has both values.
    """
    first = np.asarray(a, dtype=np.float64)
    second = np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"two vectors over the same users are needed: {first.shape}, {second.shape}"
        )
    both = np.isfinite(first) & np.isfinite(second)
    first, second = first[both], second[both]
    if first.size == 0:
        raise ValueError("no user has both values")
    delta = first - second
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // delta.size)
    means = np.empty(samples)
    for start in range(0, samples, block):
        shape = (min(block, samples - start), delta.size)
        means[start : start + block] = delta[generator.integers(0, delta.size, shape)].mean(1)
    tail = (1.0 - confidence) / 2.0
    lower, upper = np.quantile(means, [tail, 1.0 - tail])
    # The +1 keeps p above 0, as a permutation test does: `samples` resamples cannot show more.
    below = (np.count_nonzero(means <= 0) + 1) / (samples + 1)
    above = (np.count_nonzero(means >= 0) + 1) / (samples + 1)
    return Comparison(
        mean_a=float(first.mean()),
        mean_b=float(second.mean()),
        difference=float(delta.mean()),
        lower=float(lower),
        upper=float(upper),
        p_value=float(min(1.0, 2.0 * min(below, above))),
        users=int(delta.size),
        confidence=confidence,
    )
