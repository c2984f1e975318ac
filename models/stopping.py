"""Clean stops: SIGTERM ends the training after the current step, behind a checkpoint."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from models.errors import TrainingStopped


class StopRequest:
    """Remembers SIGTERM while it is entered; restores the handler that it found."""

    def __init__(self) -> None:
        self.asked = False
        """Whether the process was told to stop."""

    def __enter__(self) -> StopRequest:
        # Signal handlers belong to the main thread; elsewhere the host handles them.
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._main:
            signal.signal(signal.SIGTERM, self._before)

    def raise_if_asked(self, done: int, steps: int) -> None:
        """Ends the training when the process was told to stop.

        Raises:
            TrainingStopped: It was.
        """
        if self.asked:
            raise TrainingStopped(f"stopped after step {done} of {steps}; a checkpoint is kept")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
