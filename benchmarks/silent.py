"""A place for the reports of a training that nobody watches."""

from __future__ import annotations

from collections.abc import Mapping


class Silent:
    """Nobody listens; see `models.progress.MetricSink`."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Says nothing."""

    def log_text(self, name: str, text: str) -> None:
        """Says nothing."""

    def progress(self, done: int, total: int, message: str) -> None:
        """Says nothing."""
