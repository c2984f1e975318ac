"""Protects: training never waits for or fails with the tracking server, nothing that the server
could still take is lost, and what was lost is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

from tasks.config import PipelineConfig
from tasks.tracking import MetricLogger, client, start_parent_run
from tasks.tracking.metric_logger import Point


class Server:
    """A server that can be switched off."""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.up.set()
        self.points: list[Point] = []
        self.texts: dict[str, str] = {}
        self.calls = 0

    def send_points(self, points: Sequence[Point]) -> None:
        self._answer()
        self.points.extend(points)

    def send_text(self, name: str, text: str) -> None:
        self._answer()
        self.texts[name] = text

    def _answer(self) -> None:
        self.calls += 1
        if not self.up.is_set():
            raise ConnectionError("server is down")


def _until(condition: object, seconds: float = 5.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_metrics_arrive_in_order_and_in_batches() -> None:
    sink = Server()
    logger = MetricLogger("", "", sink=sink, pause_seconds=0.05)
    for step in range(2500):
        logger.log_metrics(step, {"loss": float(step)})
    delivery = logger.close()
    assert [p[1] for p in sink.points] == [float(n) for n in range(2500)]
    assert (delivery.sent, delivery.lost, delivery.outage_seconds) == (2500, 0, 0.0)
    assert sink.calls <= 5  # 1000 at a time, not one by one


@pytest.mark.faults
def test_an_outage_is_survived_and_replayed() -> None:
    sink = Server()
    logger = MetricLogger("", "", sink=sink, pause_seconds=0.01)
    logger.log_metrics(0, {"loss": 0.0})
    _until(lambda: len(sink.points) == 1)
    sink.up.clear()
    for step in range(1, 51):
        logger.log_metrics(step, {"loss": float(step)})
    logger.log_text("plan.txt", "two tables")
    calls = sink.calls
    _until(lambda: sink.calls > calls)
    sink.up.set()
    delivery = logger.close()
    assert [p[3] for p in sink.points] == list(range(51))
    assert sink.texts == {"plan.txt": "two tables"}
    assert delivery.lost == 0
    assert delivery.outage_seconds >= 0


@pytest.mark.faults
def test_a_dead_server_costs_the_oldest_points_and_close_is_bounded() -> None:
    sink = Server()
    sink.up.clear()
    logger = MetricLogger("", "", sink=sink, capacity=10, pause_seconds=0.01)
    started = time.monotonic()
    for step in range(100):
        logger.log_metrics(step, {"loss": float(step)})
    assert time.monotonic() - started < 1
    _until(lambda: sink.calls > 0)
    delivery = logger.close(timeout=0.3)
    assert time.monotonic() - started < 3
    assert delivery.sent == 0
    assert delivery.lost == 100
    assert delivery.outage_seconds > 0


def test_values_that_are_not_finite_are_left_out() -> None:
    sink = Server()
    with MetricLogger("", "", sink=sink, pause_seconds=0.01) as logger:
        logger.log_metrics(3, {"a": float("nan"), "b": float("inf"), "c": 1.0})
    assert [(p[0], p[3]) for p in sink.points] == [("c", 3)]


def test_points_reach_a_real_store_with_their_steps(mlflow_uri: str, tmp_path: Path) -> None:
    config = PipelineConfig.model_validate(
        {
            "name": "shop",
            "lake": str(tmp_path / "lake"),
            "tracking": {"uri": mlflow_uri},
            "tables": {
                "user": {"source": "interactions.user_id"},
                "item": {"source": "interactions.item_id"},
            },
            "model": {
                "user": {"features": [{"name": "uid", "table": "user"}]},
                "item": {"features": [{"name": "iid", "table": "item"}]},
            },
        }
    )
    run_id = start_parent_run("r", date(2026, 1, 3), config)
    with MetricLogger(mlflow_uri, run_id, pause_seconds=0.05) as logger:
        for step in range(20):
            logger.log_metrics(step, {"train/loss": 1.0 / (step + 1)})
        logger.log_text("plan.txt", "two tables")
    history = client(config).get_metric_history(run_id, "train/loss")
    assert sorted((m.step, m.value) for m in history) == [(n, 1.0 / (n + 1)) for n in range(20)]
    assert [f.path for f in client(config).list_artifacts(run_id)] == ["plan.txt"]
