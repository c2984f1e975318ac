"""Finds the different values among integers of a known range, in time linear in their number."""

from __future__ import annotations

import torch
from torch import Tensor


class Distinct:
    """Finds different values by writing down, for each value, one place where it stands.

    The table of places is kept between calls and never cleared: an entry counts only if the value
    really stands at that place. So a call costs a few passes over its own values, whatever the
    range is, where sorting costs several times as much.

    Args:
        limit: Exclusive upper limit of the values; four bytes are kept for each.
        device: Where the values are.
    """

    def __init__(self, limit: int, device: torch.device) -> None:
        self._place = torch.zeros(limit, dtype=torch.int32, device=device)
        self._values = torch.zeros(0, dtype=torch.int64, device=device)
        self._rank = self._values
        self.count = 0
        """Different values of the last call."""

    def __call__(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The different values and the position of each value among them.

        Args:
            values: Integers in `[0, limit)`, int64 `[V]`.

        Returns:
            Different values `[U]`, each where it stands last, and positions `[V]`.
        """
        places = torch.arange(values.numel(), dtype=torch.int32, device=values.device)
        self._place[values] = places
        chosen = self._place.index_select(0, values)
        kept = chosen == places
        self._values, self._rank = values, kept.cumsum(0).sub_(1)
        different = values[kept]
        self.count = different.numel()
        return different, self._rank.index_select(0, chosen)

    def find(self, values: Tensor) -> Tensor:
        """Positions among the different values of the last call, -1 for others.

        Args:
            values: Integers in `[0, limit)`, int64 `[V]`.

        Returns:
            int64 `[V]`.
        """
        if self._values.numel() == 0:
            return torch.full_like(values, -1)
        place = self._place.index_select(0, values).clamp_(max=self._values.numel() - 1)
        same = self._values.index_select(0, place) == values
        return self._rank.index_select(0, place).masked_fill_(~same, -1)

    def last_place(self, values: Tensor) -> Tensor:
        """Where each of some values stood last in the last call, int64 `[V]`."""
        return self._place[values].long()
