"""Mixed precision: which type the towers' layers compute in, and the scale of the loss.

Weights, optimizer state, the vectors and the loss stay in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from models import collectives

Precision = Literal["auto", "fp32", "bf16", "fp16"]

INITIAL_SCALE = 2.0**16
_GROW_AFTER = 2000  # steps without an overflow
_TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def layer_type(precision: Precision, device: torch.device) -> torch.dtype | None:
    """Type that the layers compute in; None for float32.

    `auto` takes a short type where an accelerator has one, bfloat16 first, whose range needs no
    scale. CPUs stay at float32: most of them only emulate the others, many times slower.
    """
    if precision != "auto":
        return _TYPES[precision]
    if device.type == "cpu":
        return None
    known = torch.accelerator.get_device_capability(device)["supported_dtypes"]
    return next((t for t in (torch.bfloat16, torch.float16) if t in known), None)


def needs_scale(layers: torch.dtype | None) -> bool:
    """Whether small gradients would vanish in a type."""
    return layers is torch.float16


class LossScale:
    """Factor of the loss that keeps gradients inside the range of float16.

    The scale is halved when a gradient overflowed, and doubled after many steps without one, as
    `torch.amp.GradScaler` does; that one wants all gradients in one optimizer, while those of the
    tables' rows are in none. Scales are powers of two: multiplying by one rounds nothing.

    Args:
        active: Whether there is a scale at all; without, the factor is 1 and nothing is checked.
        device: This rank's device.
    """

    def __init__(self, active: bool, device: torch.device) -> None:
        self._active = active
        self._device = device
        # Scale, steps since it changed, skipped steps: a tensor, because a checkpoint keeps it.
        scale = INITIAL_SCALE if active else 1.0
        self._state = torch.tensor([scale, 0.0, 0.0], dtype=torch.float64)

    @property
    def active(self) -> bool:
        """Whether there is a scale."""
        return self._active

    @property
    def factor(self) -> float:
        """The scale."""
        return float(self._state[0])

    @property
    def skipped(self) -> int:
        """Steps that were not taken because a gradient overflowed."""
        return int(self._state[2])

    @torch.no_grad()
    def unscale(self, gradients: Sequence[Tensor]) -> bool:
        """Divides gradients by the scale, in place, and adapts it; a collective.

        Returns:
            Whether all gradients of all ranks are finite: else the step must not be taken.
        """
        if not self._active:
            return True
        inverse = 1.0 / self.factor
        finite = torch.ones((), dtype=torch.bool, device=self._device)
        for gradient in gradients:
            finite &= gradient.isfinite().all()
            gradient.mul_(inverse)
        (overflowed,) = collectives.maximum([int(not finite)], self._device)
        if overflowed:
            self._state += torch.tensor([-self.factor / 2, -float(self._state[1]), 1.0])
        else:
            self._state[1] += 1
            if int(self._state[1]) == _GROW_AFTER:
                self._state[:2] = torch.tensor([self.factor * 2, 0.0])
        return not overflowed

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, sharing its memory."""
        return {"scale": self._state}
