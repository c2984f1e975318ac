"""What a consumer of the champion looks like: runs whenever a new model is served.

Writes the item vectors to `serving/items/` of the lake; add the task that loads them into your
search index below `export_items`. Backfills, rejected candidates and runs that were overtaken emit
no event, so nothing here runs for them.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from dags.alerts import TaskAlert
from dags.operators.champion import CHAMPION
from dags.operators.command import ChampionCommand

NEWEST = "{{ (triggering_asset_events.values() | first | last).extra.run_spec }}"
"""Template of the run spec of the newest champion that triggered a run."""

with DAG(
    dag_id="rebuild_index",
    dag_display_name="Rebuild the item index",
    description="Export the champion's item vectors whenever a new model is served.",
    schedule=[CHAMPION],
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=4),
    default_args={
        "owner": "tailtower",
        "on_failure_callback": TaskAlert(),
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "execution_timeout": timedelta(hours=1),
    },
    tags=["tailtower", "two-tower", "serving"],
    doc_md=__doc__,
) as dag:
    ChampionCommand(
        task_id="export_items",
        command="export-items",
        run_spec=NEWEST,
        doc_md="Red: the message names the file of the bundle that is damaged or gone; run that "
        "day again with *Start again*, or `tailtower rollback`.",
    )
