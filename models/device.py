"""The one place that knows what the machine computes on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_THRESHOLD = 32 << 20  # glibc refuses more
_KEPT_BYTES = 1 << 30


def local_rank() -> int:
    """Number of this process on its machine, as torch elastic sets it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_world_size() -> int:
    """Number of ranks on this machine, as torch elastic sets it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))


def compute_device() -> torch.device:
    """This rank's device: its share of the machine's accelerators, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    device = torch.device(accelerator.type, local_rank() % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    return device


def device_name(device: torch.device) -> str:
    """Name of an accelerator's model."""
    return str(torch.get_device_module(device).get_device_name(device))


def synchronise(device: torch.device) -> None:
    """Waits until the device has done all that it was told; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def communication_backend(device: torch.device) -> str:
    """Communication library for tensors on this device, beside gloo for tensors on the CPU."""
    backend = dist.get_default_backend_for_device(device)
    return backend if device.type == "cpu" else f"cpu:gloo,{device.type}:{backend}"


class CopyStream:
    """Copies to a device beside its computation.

    Args:
        device: An accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device)

    def send(self, x: Tensor) -> Tensor:
        """The tensor on the device; its content arrives after what was sent before it."""
        # Only a copy from page-locked memory lets the host go on.
        locked = x.pin_memory()
        with self._stream:
            return locked.to(self._device, non_blocking=True)

    def mark(self) -> torch.Event:
        """A moment at which everything that was sent has arrived."""
        return self._stream.record_event()

    def receive(self, moment: torch.Event, tensors: Iterable[Tensor]) -> None:
        """Lets the device's computation wait for a moment, and use tensors that were sent.

        Args:
            moment: When they have arrived.
            tensors: Their memory is not given away while the computation may still read it.
        """
        computing = torch.accelerator.current_stream(self._device)
        computing.wait_event(moment)
        for tensor in tensors:
            tensor.record_stream(computing)


def use_threads(threads: int | None) -> int:
    """Sets the compute threads of this process and returns their number.

    Args:
        threads: How many; by default the usable cores divided by the ranks of this machine.
    """
    if threads is None:
        threads = max(1, len(os.sched_getaffinity(0)) // local_world_size())
    torch.set_num_threads(threads)
    return threads


def keep_freed_memory() -> None:
    """Lets the C library keep what a step frees for the next step.

    glibc gives large blocks back to the system at once, and every page of them costs a fault and
    a clearing when the next step asks again. The values are those of
    `man mallopt`; other C libraries are left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def rank_memory_bytes(device: torch.device) -> tuple[int, int]:
    """Memory that this rank may use, and what its process holds of it already.

    Ranks of one machine share what is free, within the limit of their container.
    """
    if device.type != "cpu":
        unused, _ = torch.accelerator.get_memory_info(device)
        return int(unused), 0
    held = psutil.Process().memory_info().rss
    free: float = min(psutil.virtual_memory().available, _free_in_container(Path("/sys/fs/cgroup")))
    return held + int(free) // local_world_size(), held


def _free_in_container(cgroup: Path) -> float:
    """Bytes below the limit of this process's control group (version 2); no limit is infinite."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        lines = (cgroup / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return float("inf")
    if limit == "max":
        return float("inf")
    # Files that are cached give way.
    cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return max(0, int(limit) - used + cached)


def peak_memory_bytes(device: torch.device) -> int:
    """Largest memory that this process used: of the device, or of the host without one."""
    if device.type == "cpu":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(torch.accelerator.max_memory_allocated(device))
