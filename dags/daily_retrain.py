"""The daily retraining."""

from __future__ import annotations

from airflow.sdk import CronPartitionTimetable

from dags.day_dag import day_dag
from dags.run_day import KEY_FORMAT
from dags.triage import dag_notes
from dags.trigger_form import trigger_form

dag = day_dag(
    dag_id="daily_retrain",
    title="Daily retraining",
    description="Retrain on yesterday's window, compare with champion and baselines, promote.",
    # Midnight is the only hour at which scheduled, manual and backfill runs of one day agree:
    # a scheduled run's partition is one tick before its run date, a backfill's is the tick.
    schedule=CronPartitionTimetable(
        "0 0 * * *", timezone="UTC", run_offset=-1, key_format=KEY_FORMAT
    ),
    form=trigger_form(),
    notes=dag_notes(),
)
