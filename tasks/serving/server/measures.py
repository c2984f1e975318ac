"""What the server counts, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from tasks.serving.described import Recommendations
from tasks.serving.server.champion_watch import ChampionWatch

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


@dataclass
class Outcome:
    """How a request ended."""

    path: str = "unknown"
    status: int = 500


class Measures:
    """Counters of one server.

    Args:
        watch: The champion, for its version and its swaps.
    """

    def __init__(self, watch: ChampionWatch) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "tailtower_request_seconds",
            "Time of a request.",
            ("method", "path", "status"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._answers = Counter(
            "tailtower_answers",
            "Answers by what they were made from.",
            ("origin",),
            registry=self.registry,
        )
        self._unknown = Counter(
            "tailtower_unknown_ids",
            "IDs that the model does not know.",
            ("kind",),
            registry=self.registry,
        )
        self.registry.register(_Champion(watch))

    @contextmanager
    def timed(self, method: str) -> Iterator[Outcome]:
        """Measures a request; its end is filled in by the caller."""
        outcome = Outcome()
        started = time.perf_counter()
        try:
            yield outcome
        finally:
            labels = (method, outcome.path, str(outcome.status))
            self._seconds.labels(*labels).observe(time.perf_counter() - started)

    def answered(self, found: Recommendations) -> None:
        """Counts an answer."""
        self._answers.labels(found.origin).inc()
        self._unknown.labels("item").inc(len(found.unknown_history))
        self._unknown.labels("candidate").inc(found.unknown_candidates)
        if found.user_id is not None and not found.known_user:
            self._unknown.labels("user").inc()


class _Champion(Collector):
    def __init__(self, watch: ChampionWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        served = self._watch.served
        yield InfoMetricFamily(
            "tailtower_model",
            "The model that answers.",
            value={"version": served.version, "day": served.day, "run_id": served.run_id},
        )
        swaps = CounterMetricFamily("tailtower_swaps", "Champions that took another's place.")
        swaps.add_metric((), self._watch.swaps)
        yield swaps
        failed = CounterMetricFamily("tailtower_load_failures", "Champions that did not load.")
        failed.add_metric((), self._watch.failures)
        yield failed
