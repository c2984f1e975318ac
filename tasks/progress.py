"""Progress of long work: a live bar when a person is watching, plain lines when not."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console(stderr=True)
_LINE_EVERY_SECONDS = 10.0


def log(event: str, **facts: Any) -> None:
    """Writes one structured line: an event and its facts.

    A person sees `event key=value …`; a log collector gets the same keys as JSON when standard
    error is not a terminal.
    """
    if console.is_terminal:
        shown = " ".join(f"[dim]{key}=[/dim]{_short(value)}" for key, value in facts.items())
        console.print(f"[bold]{event}[/bold] {shown}", highlight=False)
    else:
        line = json.dumps({"event": event, **facts}, default=str, ensure_ascii=False)
        print(line, file=sys.stderr, flush=True)


class Ticker:
    """Handle of a piece of work whose progress is shown."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.done = 0

    def advance(self, amount: int = 1) -> None:
        """Counts finished units."""
        self.done += amount

    def set(self, done: int, total: int, message: str) -> None:
        """Says how far work is whose size is known only to another process."""
        self.total = total
        self.advance(done - self.done)


class _Bar(Ticker):
    def __init__(self, name: str, total: int, progress: Progress) -> None:
        super().__init__(name, total)
        self._progress = progress
        self._task = progress.add_task(name, total=total)

    def advance(self, amount: int = 1) -> None:
        super().advance(amount)
        self._progress.update(self._task, completed=self.done, total=self.total)

    def set(self, done: int, total: int, message: str) -> None:
        super().set(done, total, message)
        self._progress.update(self._task, description=f"{self.name}: {message}")

    def remove(self) -> None:
        """Takes the bar off the display."""
        self._progress.remove_task(self._task)


class _Lines(Ticker):
    def __init__(self, name: str, total: int) -> None:
        super().__init__(name, total)
        self._started = self._last = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        super().advance(amount)
        now = time.monotonic()
        if now - self._last >= _LINE_EVERY_SECONDS:
            self._last = now
            seconds = round(now - self._started, 1)
            log(self.name, done=self.done, total=self.total, seconds=seconds)


class _Display:
    """The terminal's one live display, shared by the pieces of work that go on at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bars = 0
        self._progress: Progress | None = None

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Ticker]:
        with self._lock:
            if self._progress is None:
                self._progress = _started()
            shown = self._progress
            self._bars += 1
        ticker = _Bar(name, total, shown)
        try:
            yield ticker
        finally:
            with self._lock:
                ticker.remove()
                self._bars -= 1
                if not self._bars:
                    shown.stop()
                    self._progress = None


def _started() -> Progress:
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    shown = Progress(*columns, console=console, transient=True)
    shown.start()
    return shown


_display = _Display()


@contextmanager
def progress(name: str, total: int) -> Iterator[Ticker]:
    """Shows the progress of `total` units of work; threads may do so at the same time."""
    if not console.is_terminal:
        yield _Lines(name, total)
        return
    with _display.bar(name, total) as ticker:
        yield ticker


def quiet_libraries() -> None:
    """Keeps libraries' own chatter out of a step's log; warnings and errors stay."""
    for name in ("great_expectations", "distributed", "mlflow", "matplotlib", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
