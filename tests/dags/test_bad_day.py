"""Protects: a day of bad data stops the real DAG in `validate` at once, and changes nothing else.

The real DAG, the real steps in their own processes, a real MLflow store with a champion.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks.lake import Lake
from tasks.promotion import POINTER
from tasks.tracking import client, current_champion, registry
from tasks.tracking.runs import DAY, RUN_ID, find_run, get_run
from tests.tasks.validated_lake import FIRST, pipeline, spoil, write_good_days

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(300),
    # Airflow's own code warns about its own and its libraries' coming changes.
    pytest.mark.filterwarnings("default"),
]


def test_a_bad_day_stops_the_run_at_once_and_the_champion_stays(
    airflow_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lake = tmp_path / "lake"
    write_good_days(lake)
    config = pipeline(lake, f"sqlite:///{tmp_path / 'mlflow.db'}", validation="block")
    _champion(config)
    served = current_champion(config)
    (lake / POINTER).parent.mkdir(parents=True)
    (lake / POINTER).write_text('{"version": "1"}')
    day = spoil(lake)
    assert day == FIRST + timedelta(1)
    path = tmp_path / "test.yaml"
    path.write_text(config.model_dump_json())  # JSON is YAML
    monkeypatch.setenv("TAILTOWER_PYTHON", sys.executable)

    from dags.daily_retrain import dag

    assert dag.get_task("validate").retries  # so that not retrying is a decision
    run = dag.test(logical_date=None, run_conf={"day": str(day), "config": str(path)})

    assert str(run.state) == "failed"
    tasks = {task.task_id: task for task in run.get_task_instances()}
    states = {name: str(task.state) for name, task in tasks.items()}
    assert states.pop("resolve_run") == states.pop("await_partition") == "success"
    assert states.pop("validate") == "failed"
    assert set(states.values()) == {"upstream_failed"}
    assert tasks["validate"].try_number == 1

    (record,) = (lake / "quarantine" / "interactions" / f"dt={day}").glob("*.json")
    partition = Lake(str(lake)).partition("raw/interactions", day)
    assert partition is not None
    assert json.loads(record.read_text())["manifest_digest"] == partition.digest
    assert not [name for name in ("counts", "vocabulary", "examples") if (lake / name).exists()]
    assert current_champion(config) == served
    assert (lake / POINTER).read_text() == '{"version": "1"}'
    (run_id,) = [path.name for path in (lake / "runs").iterdir()]
    shown = get_run(config, str(find_run(config, run_id))).data.tags
    assert shown["tailtower.validation"] == "blocked"
    assert (
        f"block: interactions {day}: required user_id"
        in (shown["tailtower.validation.broken_rules"])
    )


def _champion(config: Any) -> None:
    """Registers a version that is served."""
    mlflow, name = client(config), config.tracking.model_name
    mlflow.create_registered_model(name)
    tags = {RUN_ID: "before", DAY: "2025-12-31", registry.BUNDLE: "models/before/candidate"}
    version = mlflow.create_model_version(name, source="file:///models/before", tags=tags)
    registry.set_alias(config, registry.CHAMPION, version.version)
