"""Metrics of a running training: buffered, sent in batches, never in the way of a step."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from tasks.progress import log

if TYPE_CHECKING:
    from mlflow.entities import Metric

_BATCH = 1000
_PAUSE_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 60.0

Point = tuple[str, float, int, int]
"""Name, value, time in milliseconds since the epoch, step."""


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

    `log` never blocks and never raises. While the server does not answer, points wait in a
    bounded buffer and are sent with their own times afterwards; when the buffer is full the
    oldest are dropped. `close` says what was lost.

    Args:
        uri: MLflow tracking URI.
        mlflow_run_id: The run.
        capacity: Points held at most.
        pause_seconds: Time between two batches; doubled after every failure, up to a minute.
        send: Replaces the delivery to MLflow, for other sinks.
    """

    def __init__(
        self,
        uri: str,
        mlflow_run_id: str,
        *,
        capacity: int = 200_000,
        pause_seconds: float = _PAUSE_SECONDS,
        send: Callable[[Sequence[Point]], None] | None = None,
    ) -> None:
        self._send = send or _MlflowSender(uri, mlflow_run_id)
        self._pause = pause_seconds
        self._points: deque[Point] = deque()
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

    def log(self, metrics: Mapping[str, float], step: int) -> None:
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
                more = bool(self._points)
            if not batch:
                if self._closing.is_set():
                    return
                continue
            if self._deliver(batch):
                pause = self._pause
                if more or self._closing.is_set():
                    self._wake.set()
            else:
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                if self._closing.is_set():
                    # The last seconds: ask often, `close` bounds how long.
                    pause = self._pause

    def _deliver(self, batch: list[Point]) -> bool:
        try:
            self._send(batch)
        except Exception as error:  # whatever it is, training goes on
            with self._lock:
                room = max(self._capacity - len(self._points), 0)
                kept = batch[len(batch) - min(room, len(batch)) :]
                self._lost += len(batch) - len(kept)
                self._points.extendleft(reversed(kept))
                self._in_flight = 0
                if self._failing_since is None:
                    self._failing_since = time.monotonic()
                    log("metrics.waiting", reason=str(error).strip().splitlines()[:1])
            return False
        with self._lock:
            self._sent += len(batch)
            self._in_flight = 0
            if self._failing_since is not None:
                self._outage += time.monotonic() - self._failing_since
                self._failing_since = None
                log("metrics.resumed", outage_seconds=round(self._outage, 1))
        return True


class _MlflowSender:
    """Sends batches to an MLflow run; MLflow is imported by the thread that sends first."""

    def __init__(self, uri: str, mlflow_run_id: str) -> None:
        self._uri = uri
        self._run_id = mlflow_run_id

    def __call__(self, batch: Sequence[Point]) -> None:
        from tasks.tracking.location import open_client

        mlflow = open_client(self._uri)
        from mlflow.entities import Metric

        points: list[Metric] = [Metric(*point) for point in batch]
        mlflow.log_batch(self._run_id, metrics=points, synchronous=True)
