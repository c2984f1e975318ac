"""Protects: the rules that every DAG here keeps, and that no DAG depends on the calendar."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from dags import daily_retrain, full_refresh, rebuild_index
from tasks.local_stack.settings import TRAINING_POOL

DAGS: list[DAG] = [daily_retrain.dag, full_refresh.dag, rebuild_index.dag]
START = 1704067200.0  # 2024-01-01, the start date

every_dag = pytest.mark.parametrize("dag", DAGS, ids=lambda dag: dag.dag_id)


@every_dag
def test_a_dag_says_whose_it_is_and_what_it_does(dag: DAG):
    assert dag.owner == "tailtower"
    assert {"tailtower", "two-tower"} <= dag.tags
    assert dag.dag_display_name != dag.dag_id
    assert dag.description
    assert dag.description.endswith(".")
    assert len(dag.doc_md or "") > 100


@every_dag
def test_runs_of_a_dag_come_one_after_another_and_end(dag: DAG):
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert dag.dagrun_timeout
    assert dag.dagrun_timeout <= timedelta(hours=48)


@every_dag
def test_a_task_has_notes_limits_and_somebody_to_tell(dag: DAG):
    for task in dag.tasks:
        settings: Any = task
        assert settings.doc_md, task.task_id
        assert settings.retries == 2, task.task_id
        assert timedelta(0) < settings.execution_timeout <= timedelta(hours=12), task.task_id
        assert settings.pool in ("default_pool", TRAINING_POOL)
        assert (settings.pool == TRAINING_POOL) is (task.task_id == "train")
        # The task of a failed run's end comes after one that has told everybody.
        assert bool(settings.on_failure_callback) is (task.task_id != "reconcile"), task.task_id


@every_dag
def test_nothing_in_a_dag_depends_on_the_calendar(dag: DAG):
    """Else Airflow would store a new version of the DAG every day."""
    from airflow.serialization.serialized_objects import DagSerialization

    text = json.dumps(DagSerialization.serialize_dag(dag))
    assert dag.dag_id in text
    times = {float(number) for number in re.findall(r"\b1[67]\d{8}(?:\.\d+)?\b", text)}
    assert times <= {START}
    assert not re.findall(r"\b20\d\d-\d\d-\d\d\b", text)


def test_the_full_refresh_is_the_daily_run_with_a_model_that_starts_anew():
    def shape(dag: DAG) -> dict[str, Any]:
        return {task.task_id: (type(task), task.upstream_task_ids) for task in dag.tasks}

    assert shape(full_refresh.dag) == shape(daily_retrain.dag)
    ours, daily = (d.params.dump() for d in (full_refresh.dag, daily_retrain.dag))
    assert ours == {**daily, "warm_start": "none"}
    assert full_refresh.dag.is_paused_upon_creation
