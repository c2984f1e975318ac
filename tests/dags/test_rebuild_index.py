"""Protects: the example of a consumer runs for a new champion only, and for that champion."""

import json
from typing import Any

from airflow.serialization.serialized_objects import DagSerialization

from dags.operators.champion import CHAMPION
from dags.rebuild_index import NEWEST, dag


def test_it_is_triggered_by_the_champion_alone():
    seen = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert [asset.name for _, asset in seen.timetable.asset_condition.iter_assets()] == [
        CHAMPION.name
    ]
    assert json.dumps(DagSerialization.serialize_dag(dag))


def test_the_newest_event_names_the_run():
    task: Any = dag.get_task("export_items")
    events = {CHAMPION: [{"extra": {"run_spec": "old"}}, {"extra": {"run_spec": "new"}}]}
    environment = dag.get_template_env()
    found = environment.from_string(NEWEST).render(triggering_asset_events=events)
    assert found == "new"
    assert task.run_spec == NEWEST
