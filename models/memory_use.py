"""Where the memory of a training goes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one rank.

    Attributes:
        tables: Weights of the embedding tables.
        optimizer: State of both optimizers.
        towers: Weights of the towers.
        input: Macro-batches that are ready at a time.
        activations: Highest sum of what a step makes: fetched rows, activations, gradients and
            everything temporary.
    """

    tables: int
    optimizer: int
    towers: int
    input: int
    activations: int

    def metrics(self) -> dict[str, float]:
        """MiB by name, for the reports of a training."""
        return {f"memory_{f.name}_mib": getattr(self, f.name) / 2**20 for f in fields(self)}

    def text(self) -> str:
        """A line for each component, largest first."""
        parts = sorted(((getattr(self, f.name), f.name) for f in fields(self)), reverse=True)
        return "\n".join(f"{name:<12}{size / 2**20:>12,.1f} MiB" for size, name in parts)


class NewTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the tensors that are made while it is entered.

    It sees every operation of PyTorch in this thread, forward and backward, and what is freed; an
    operation costs some microseconds more.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        """Bytes that were made and are still there."""
        self.peak = 0
        """Highest value of `live`."""
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _key(tensor) not in given:
                self._follow(tensor)
        self.peak = max(self.peak, self.live)
        return result

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = _key(tensor), storage.nbytes()
        if key in self._known:
            return

        def gone(_: Any) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, gone)
        self.live += size


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors, each memory once."""
    storages = {_key(t): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
