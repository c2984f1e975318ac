"""A trace of some steps by `torch.profiler`, for `chrome://tracing` or Perfetto."""

from __future__ import annotations

import os
from pathlib import Path

from torch.profiler import profile

_WARM_UP = 2  # first steps make memory and state that later ones find
TRACES = "traces"


class StepTrace:
    """Records steps of a run after its first ones.

    Args:
        steps: How many; 0 for none.
        folder: Where the trace goes, as `trace-<first step>.json.gz`.
    """

    def __init__(self, steps: int, folder: Path) -> None:
        self._steps = steps
        self._folder = folder
        self._seen = 0
        self._profile: profile | None = None
        self._name = ""

    def before(self, step: int) -> None:
        """Called before a step of the training, with its number."""
        if self._steps and self._seen == _WARM_UP and self._profile is None:
            # An accelerator's own activity is recorded where there is one.
            self._profile = profile(record_shapes=True)
            self._profile.start()
            self._name = f"trace-{step:06d}.json.gz"

    def after(self) -> None:
        """Called after a step; writes the trace when it was the last one to record."""
        self._seen += 1
        if self._seen == _WARM_UP + self._steps:
            self.close()

    def close(self) -> None:
        """Writes what was recorded, if a recording is going on."""
        if self._profile is None:
            return
        recorded, self._profile, self._steps = self._profile, None, 0
        recorded.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        # The ending decides about compression.
        partial = self._folder / f".{self._name}"
        recorded.export_chrome_trace(str(partial))
        os.replace(partial, self._folder / self._name)
