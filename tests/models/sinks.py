"""A sink that remembers what training reported."""

from __future__ import annotations

from collections.abc import Mapping


class Recorder:
    """Keeps every report."""

    def __init__(self) -> None:
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.texts: list[tuple[str, str]] = []
        self.steps: list[tuple[int, int]] = []

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics.append((step, dict(metrics)))

    def log_text(self, name: str, text: str) -> None:
        self.texts.append((name, text))

    def progress(self, done: int, total: int, message: str) -> None:
        self.steps.append((done, total))
