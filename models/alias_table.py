"""Alias tables: a discrete distribution that is drawn from in constant time (Walker's method).

Numpy only, so that the examples step can write them without importing torch; the sampler of the
trainer is in `models/negatives.py`. Source of the method: A. J. Walker, "An efficient method for
generating discrete random variables with general distributions", ACM TOMS 3 (1977); the
construction is the prefix-sum form of Vose's algorithm (Hübschle-Schneider and Sanders,
"Parallel Weighted Random Sampling", ESA 2019), which needs no loop over the items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class AliasTable:
    """A discrete distribution over `[0, N)` in alias form.

    Attributes:
        prob: Probability to keep a uniformly drawn slot, float32 `[N]`.
        alias: Result when the slot is not kept, int32 `[N]`.
        log_q: Natural logarithm of each item's probability, float32 `[N]`; -inf for never.
    """

    prob: npt.NDArray[np.float32]
    alias: npt.NDArray[np.int32]
    log_q: npt.NDArray[np.float32]

    def to_arrow(self) -> pa.Table:
        """The columns `prob`, `alias` and `log_q`."""
        return pa.table({"prob": self.prob, "alias": self.alias, "log_q": self.log_q})


def build_alias_table(weights: npt.ArrayLike) -> AliasTable:
    """Builds the alias table of a distribution.

    Args:
        weights: Non-negative weights `[N]`, not necessarily normalised.

    Raises:
        ValueError: A weight is negative or not finite, or all are zero.
    """
    w = np.asarray(weights, dtype=np.float64)
    if w.ndim != 1 or w.size == 0:
        raise ValueError("weights must be a non-empty vector")
    total = w.sum()
    if not np.isfinite(total) or (w < 0).any() or total <= 0:
        raise ValueError("weights must be finite, not negative, and not all zero")
    scaled = w * (w.size / total)
    is_light = scaled < 1.0
    is_light[scaled.argmax()] = False  # at least the mean, whatever rounding says
    light, heavy = np.flatnonzero(is_light), np.flatnonzero(~is_light)
    prob = np.ones(w.size)
    alias = np.arange(w.size)
    if light.size:
        # Light slots are filled from heavy ones in order: light i takes its missing mass from
        # the heavy slot that is being used up when the lights before it are full, and a heavy
        # slot that was overdrawn becomes light and is filled from its successor.
        missing = np.cumsum(1.0 - scaled[light])
        excess = np.cumsum(scaled[heavy] - 1.0)
        before = np.concatenate(([0.0], missing[:-1]))
        giver = np.minimum(np.searchsorted(excess, before, side="left"), heavy.size - 1)
        prob[light] = scaled[light]
        alias[light] = heavy[giver]
        overdrawn_by = np.searchsorted(missing, excess[:-1], side="right")
        overdrawn = overdrawn_by < light.size
        taken = missing[np.minimum(overdrawn_by, light.size - 1)] - excess[:-1]
        slots = heavy[:-1]
        prob[slots[overdrawn]] = np.clip(1.0 - taken[overdrawn], 0.0, 1.0)
        alias[slots[overdrawn]] = heavy[1:][overdrawn]
    with np.errstate(divide="ignore"):
        log_q = np.log(w / total)
    return AliasTable(prob.astype(np.float32), alias.astype(np.int32), log_q.astype(np.float32))
