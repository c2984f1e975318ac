"""Protects: the DAG runs all steps in their order with the right arguments, and ends as it should.

The real DAG in Airflow's own test runner; a script plays the steps.
"""

import json
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks.steps import STEPS

ROLES = ["candidate", "popularity", "traditional"]
SPEC = "/lake/runs/2026-03-09-abc/run_spec.json"
RESOLVED = {
    "run_spec": SPEC,
    "run_id": "2026-03-09-abc",
    "day": "2026-03-09",
    "roles": ROLES,
    "window": ["2026-02-23", "2026-03-08"],
}
CHAMPION = {"run_id": "2026-03-09-abc", "version": "7", "day": "2026-03-09"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # Airflow's own code warns about its own and its libraries' coming changes.
    pytest.mark.filterwarnings("default"),
]


class Stage:
    """Runs the DAG with a script of answers."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = patch

    def play(self, script: dict[str, list[Any]], conf: dict[str, Any] | None = None) -> Any:
        from dags.daily_retrain import dag

        (self.folder / "script.json").write_text(json.dumps({"resolve_run": [RESOLVED], **script}))
        # How long the scheduler lets a task wait is not under test.
        self.patch.setattr(dag.get_task("await_partition"), "poke_interval", 0.0)
        self.patch.setattr(dag.get_task("count"), "retry_delay", timedelta(0))
        self.patch.setattr(dag.get_task("count"), "retry_exponential_backoff", 0)
        return dag.test(logical_date=None, run_conf=conf)

    def calls(self) -> list[dict[str, Any]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def stage(airflow_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    python = tmp_path / "python"
    script = Path(__file__).with_name("fake_steps.py")
    python.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(script)])} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("TAILTOWER_PYTHON", str(python))
    monkeypatch.setenv("TAILTOWER_CONFIG", "conf/mine.yaml")
    monkeypatch.setenv("FAKE_STEPS", str(tmp_path))
    return Stage(tmp_path, monkeypatch)


def states(run: Any) -> dict[str, str]:
    """State of each task; mapped ones by the name that the UI shows."""
    found = {}
    for task in run.get_task_instances():
        name = task.task_id if task.map_index < 0 else f"{task.task_id} [{task.rendered_map_index}]"
        found[name] = str(task.state)
    return found


def xcom(run: Any, task: str, key: str = "return_value", map_index: int = -1) -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(
            run_id=run.run_id, key=key, task_ids=task, dag_ids=run.dag_id, map_indexes=map_index
        )
        rows = session.scalars(query).all()
        assert len(rows) <= 1
        return XComModel.deserialize_value(rows[0]) if rows else None


def champion_events() -> list[dict[str, Any]]:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent.extra).join(AssetModel, AssetEvent.asset_id == AssetModel.id)
        return list(session.scalars(query.where(AssetModel.name == "tailtower_champion")))


def test_a_run_with_a_late_day_a_hiccup_and_a_new_champion(stage: Stage):
    candidate = "http://127.0.0.1:5000/#/experiments/1/runs/abc"
    comparison = "http://127.0.0.1:5000/#/compare-runs?runs=x"
    run = stage.play(
        {
            "await_partition": [14, {"facts": {"days": 15}}],
            "count": [18, {"facts": {"ids": 12345}}],
            "train.candidate": [{"facts": {"links": {"mlflow_run": candidate}}}],
            "compare": [{"facts": {"links": {"comparison": comparison}}}],
            "gate": [{"facts": {"decision": "promoted", "reason": "recall_at_20 rose by 0.012"}}],
            "publish": [{"facts": {"promoted": True, "pointer": "models/now.json", **CHAMPION}}],
        },
        conf={"day": "2026-03-09", "min_count": 3, "promote": "ask", "force": True},
    )

    assert str(run.state) == "success"
    steps = {step.name for step in STEPS if not step.each_role}
    expected = {"resolve_run", *steps, *(f"train [{role}]" for role in ROLES)}
    assert states(run) == dict.fromkeys(expected, "success") | {"reconcile": "skipped"}

    calls = stage.calls()
    assert calls[0] == {
        "step": "resolve_run",
        "config": "conf/mine.yaml",
        "day": "2026-03-09",
        "settings": ["tables.*.vocabulary.min_count=3", "gate.promote=ask"],
        "force": True,
    }
    assert all(call["run_spec"] == SPEC for call in calls[1:])
    assert [call["step"] for call in calls] == [
        "resolve_run",
        "await_partition",
        "await_partition",
        "validate",
        "count",
        "count",
        "vocabulary",
        "examples",
        "train",
        "train",
        "train",
        "evaluate",
        "compare",
        "gate",
        "approve",
        "publish",
    ]
    trained = [call["role"] for call in calls if call["step"] == "train"]
    assert sorted(trained) == ROLES
    assert all("role" not in call for call in calls if call["step"] != "train")

    assert xcom(run, "resolve_run", "window") == ["2026-02-23", "2026-03-08"]
    assert xcom(run, "count")["facts"] == {"ids": 12345}
    assert xcom(run, "gate", "decision") == "promoted"
    assert xcom(run, "gate", "reason") == "recall_at_20 rose by 0.012"
    assert xcom(run, "train", "_link_MlflowRunLink", map_index=0) == candidate
    assert xcom(run, "train", "_link_MlflowRunLink", map_index=1) == ""
    assert xcom(run, "compare", "_link_ComparisonLink") == comparison
    assert champion_events() == [{**CHAMPION, "run_spec": SPEC}]


def test_bad_data_stops_the_run_at_once(stage: Stage):
    run = stage.play({"validate": [13]})
    assert str(run.state) == "failed"
    found = states(run)
    assert found.pop("resolve_run") == found.pop("await_partition") == "success"
    assert found.pop("validate") == found.pop("reconcile") == "failed"
    assert set(found.values()) == {"upstream_failed"}
    assert [call["step"] for call in stage.calls()] == [
        "resolve_run",
        "await_partition",
        "validate",
        "reconcile",
    ]


def test_a_day_after_the_end_of_the_logs_fails_a_manual_run(stage: Stage):
    run = stage.play({"resolve_run": [20]})
    assert str(run.state) == "failed"
    assert [call["step"] for call in stage.calls()] == ["resolve_run"]
