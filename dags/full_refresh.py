"""The weekly retraining from scratch, for pipelines whose daily runs continue the champion."""

from __future__ import annotations

from airflow.sdk import CronTriggerTimetable

from dags.day_dag import day_dag
from dags.triage import red_notes
from dags.trigger_form import trigger_form

NOTES = """
# Full refresh

The steps of *Daily retraining* for Sunday, with a model that starts anew instead of continuing an
earlier one (`training.warm_start`). It begins six hours after the daily run, shares its pool, and
has to beat the champion like any candidate.

It is paused until somebody switches it on: where daily runs start anew anyway, it finds Sunday's
work done and returns at once.
"""

dag = day_dag(
    dag_id="full_refresh",
    title="Full refresh",
    description="Every Monday: retrain Sunday from scratch, compare with the champion, promote.",
    # No partitions: those of a weekly timetable would be weeks. The day is the one before the run.
    schedule=CronTriggerTimetable("0 6 * * 1", timezone="UTC"),
    form=trigger_form(warm_start="none"),
    notes=NOTES + red_notes(),
    paused=True,
)
