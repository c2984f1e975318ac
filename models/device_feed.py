"""Macro-batches on the device before the step that wants them.

A batch is copied from page-locked memory on a stream of its own while the step before it computes:
the step waits for the copy, the host for nothing. On CPUs batches pass as they are.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import torch

from models.device import CopyStream
from models.reader import MacroBatch


def on_device(
    batches: Generator[MacroBatch, None, None], device: torch.device
) -> Generator[MacroBatch, None, None]:
    """Macro-batches with their tensors on a device, each one copied during the step before.

    Args:
        batches: As the reader makes them; closed at the end.
        device: Where they are wanted.
    """
    with closing(batches):
        if device.type == "cpu":
            yield from batches
            return
        copies = CopyStream(device)
        ready: MacroBatch | None = None
        for macro in batches:
            coming = macro.moved(copies.send)
            copied = copies.mark()
            if ready is not None:
                yield ready
            # Asked for only now, so that the step before did not wait for this copy.
            copies.receive(copied, coming.tensors())
            ready = coming
        if ready is not None:
            yield ready
