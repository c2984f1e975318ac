"""Metrics of a running training: buffered, sent in batches, never in the way of a step."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from tasks.progress import log
from tasks.tracking.location import open_client

if TYPE_CHECKING:
    from mlflow.entities import Metric

_BATCH = 1000
_PAUSE_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 60.0

Point = tuple[str, float, int, int]
"""Name, value, time in milliseconds since the epoch, step."""


class Sink(Protocol):
    """Where points and texts go; an exception means that nothing was taken."""

    def send_points(self, points: Sequence[Point]) -> None:
        """Takes a batch of at most 1000 points."""

    def send_text(self, name: str, text: str) -> None:
        """Takes a text file."""


@dataclass(frozen=True)
class Delivery:
    """What became of the metrics of a training.

    Attributes:
        sent: Points that the server has.
        lost: Points that were dropped because the buffer was full or the end came first.
        outage_seconds: How long the server did not answer while there was something to send.
    """

    sent: int
    lost: int
    outage_seconds: float


class MetricLogger:
    """Sends metrics to an MLflow run from a background thread.

    `log_metrics` and `log_text` never block and never raise. While the server does not answer,
    points wait in a bounded buffer and are sent with their own times afterwards; when the buffer
    is full the oldest are dropped. `close` says what was lost.

    Args:
        uri: MLflow tracking URI.
        mlflow_run_id: The run.
        capacity: Points held at most.
        pause_seconds: Time between two batches; doubled after every failure, up to a minute.
        sink: Replaces MLflow.
    """

    def __init__(
        self,
        uri: str,
        mlflow_run_id: str,
        *,
        capacity: int = 200_000,
        pause_seconds: float = _PAUSE_SECONDS,
        sink: Sink | None = None,
    ) -> None:
        self._sink = sink or _MlflowSink(uri, mlflow_run_id)
        self._pause = pause_seconds
        self._points: deque[Point] = deque()
        self._texts: dict[str, str] = {}
        self._capacity = capacity
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._in_flight = 0
        self._sent = 0
        self._lost = 0
        self._outage = 0.0
        self._failing_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes one report of a step; values that are not finite are left out."""
        now = int(time.time() * 1000)
        with self._lock:
            for name, value in metrics.items():
                if not math.isfinite(value):
                    continue
                if len(self._points) >= self._capacity:
                    self._points.popleft()
                    self._lost += 1
                self._points.append((name, float(value), now, step))

    def log_text(self, name: str, text: str) -> None:
        """Takes a text file that becomes an artifact; a later one of the same name replaces it."""
        with self._lock:
            self._texts[name] = text

    def close(self, timeout: float = 30.0) -> Delivery:
        """Sends what is left, for at most `timeout` seconds, and says what was lost."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)
        with self._lock:
            lost = self._lost + self._in_flight + len(self._points)
            self._points.clear()
            outage = self._outage
            if self._failing_since is not None:
                outage += time.monotonic() - self._failing_since
        delivery = Delivery(self._sent, lost, round(outage, 1))
        if lost or outage:
            log("metrics.gap", sent=self._sent, lost=lost, outage_seconds=delivery.outage_seconds)
        return delivery

    def __enter__(self) -> MetricLogger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        pause = self._pause
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            with self._lock:
                batch = [self._points.popleft() for _ in range(min(len(self._points), _BATCH))]
                self._in_flight = len(batch)
                texts = dict(self._texts)
                more = bool(self._points)
            if not batch and not texts:
                if self._closing.is_set():
                    return
            elif self._deliver(batch, texts):
                pause = self._pause
                if more or self._closing.is_set():
                    self._wake.set()
            elif self._closing.is_set():
                # The last seconds: ask often, `close` bounds how long.
                pause = self._pause
            else:
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _deliver(self, batch: list[Point], texts: Mapping[str, str]) -> bool:
        try:
            if batch:
                self._sink.send_points(batch)
            self._taken(batch)
            batch = []
            for name, text in texts.items():
                self._sink.send_text(name, text)
                with self._lock:
                    if self._texts.get(name) is text:
                        del self._texts[name]
        except Exception as error:  # whatever it is, training goes on
            self._refused(batch, error)
            return False
        return True

    def _taken(self, batch: list[Point]) -> None:
        with self._lock:
            self._sent += len(batch)
            self._in_flight = 0
            if self._failing_since is None:
                return
            self._outage += time.monotonic() - self._failing_since
            self._failing_since = None
        log("metrics.resumed", outage_seconds=round(self._outage, 1))

    def _refused(self, batch: list[Point], error: Exception) -> None:
        with self._lock:
            room = max(self._capacity - len(self._points), 0)
            kept = batch[len(batch) - min(room, len(batch)) :]
            self._lost += len(batch) - len(kept)
            self._points.extendleft(reversed(kept))
            self._in_flight = 0
            if self._failing_since is not None:
                return
            self._failing_since = time.monotonic()
        log("metrics.waiting", reason=" ".join(str(error).split())[:200])


class _MlflowSink:
    """An MLflow run; MLflow is imported by the thread that sends first."""

    def __init__(self, uri: str, mlflow_run_id: str) -> None:
        self._uri = uri
        self._run_id = mlflow_run_id

    def send_points(self, points: Sequence[Point]) -> None:
        mlflow = open_client(self._uri)
        from mlflow.entities import Metric

        metrics: list[Metric] = [Metric(*point) for point in points]
        mlflow.log_batch(self._run_id, metrics=metrics, synchronous=True)

    def send_text(self, name: str, text: str) -> None:
        open_client(self._uri).log_text(self._run_id, text, name)
