"""How many different IDs a number of draws finds, where IDs follow Zipf's law."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_EXACT = 1000  # hottest IDs that are counted one by one
_GROUPS = 2000  # of the others, geometrically wider


class Zipf:
    """IDs of which the k-th hottest is drawn in proportion to `k ** -exponent`.

    Cold IDs are counted in groups of nearly equal probability, so that a billion of them cost as
    much as a million.

    Args:
        ids: Number of IDs.
        exponent: 0 for equal probabilities.
    """

    def __init__(self, ids: int, exponent: float) -> None:
        ids = max(1, ids)
        borders = np.arange(1, min(ids, _EXACT) + 2, dtype=np.float64)
        if ids > _EXACT:
            wider = np.unique(np.geomspace(_EXACT + 1, ids + 1, _GROUPS).round())
            borders = np.concatenate([borders[:-1], wider])
        self.size: Floats = np.diff(borders)
        """IDs in each group."""
        middle = np.sqrt(borders[:-1] * np.maximum(borders[1:] - 1, borders[:-1]))
        weight = middle**-exponent
        self.probability: Floats = weight / float((weight * self.size).sum())
        """Probability of each ID of a group."""

    def seen(self, draws: float) -> Floats:
        """Probability that an ID of a group is drawn at all."""
        # All draws find the only ID.
        unlikely = np.log1p(-np.minimum(self.probability, 1 - 1e-15))
        found: Floats = -np.expm1(draws * unlikely)
        return found

    def expected(self, probability: Floats) -> float:
        """Expected number of IDs, given the probability of each ID of a group."""
        return float((self.size * probability).sum())

    def different(self, draws: float) -> float:
        """Expected number of different IDs among draws."""
        return self.expected(self.seen(draws))
