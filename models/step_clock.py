"""Adds up the time of the parts of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """Seconds by part. On an accelerator they are those of giving orders, not of the work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Seconds by part since the last `clear`."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times what happens inside."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def clear(self) -> None:
        """Forgets everything."""
        self.seconds.clear()
