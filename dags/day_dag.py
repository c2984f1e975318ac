"""A DAG that runs one day: every step a task, in the order of the table of steps.

Wiring only. Each task starts a process (`dags/operators`), so this file imports nothing of the
training stack; DAG files are read every few seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import (
    DAG,
    BaseOperator,
    CronPartitionTimetable,
    CronTriggerTimetable,
    Param,
    TaskGroup,
    TriggerRule,
)

from dags.alerts import TaskAlert, deadline
from dags.operators.decision import ApproveOperator, PublishOperator, ReconcileOperator
from dags.operators.step import (
    AwaitPartitionSensor,
    CompareOperator,
    DaskOperator,
    GateOperator,
    ResolveRunOperator,
    StepOperator,
    TrainOperator,
    ValidateOperator,
)
from dags.settings import poll_seconds
from dags.triage import task_notes
from tasks.steps import RECONCILE, RESOLVE, STEPS, Step

GROUPS = {
    "data": "From raw logs to training examples",
    "train": "The candidate and the baselines",
    "decide": "Measure, compare, promote, publish",
}
OPERATORS: dict[str, type[StepOperator]] = {
    "validate": ValidateOperator,
    "count": DaskOperator,
    "vocabulary": DaskOperator,
    "examples": DaskOperator,
    "train": TrainOperator,
    "compare": CompareOperator,
    "gate": GateOperator,
    "approve": ApproveOperator,
    "publish": PublishOperator,
}
LONGEST_LOOK = timedelta(minutes=10)


RUN_SPEC = f"{{{{ ti.xcom_pull(task_ids='{RESOLVE.name}', key='run_spec') }}}}"
"""Template of the location that `resolve_run` gave the run spec."""


def common_settings(step: Step) -> dict[str, Any]:
    """Settings of a task that come from the table of steps."""
    settings: dict[str, Any] = {
        "task_id": step.name,
        "retries": step.retries,
        "execution_timeout": timedelta(minutes=step.timeout_minutes),
        "doc_md": task_notes(step),
    }
    if step.pool is not None:
        settings["pool"] = step.pool
    if step.name in ("gate", "approve"):
        settings["on_success_callback"] = TaskAlert()
    return settings


def make_task(step: Step, resolve: ResolveRunOperator) -> BaseOperator | Any:
    """The task of a step: an operator, mapped over the roles where the step has them."""
    settings = common_settings(step)
    arguments: dict[str, Any] = {"step": step.name, "run_spec": RUN_SPEC}
    if step.name == "await_partition":
        # The table's time is for the wait; one look is short.
        settings["timeout"] = settings.pop("execution_timeout")
        return AwaitPartitionSensor(
            **settings, **arguments, execution_timeout=LONGEST_LOOK, poke_interval=poll_seconds()
        )
    if step.name == "approve":
        arguments |= {
            name: f"{{{{ ti.xcom_pull(task_ids='gate', key='{name}') }}}}"
            for name in ("decision", "proposal")
        }
    operator = OPERATORS.get(step.name, StepOperator)
    if step.each_role:
        mapped = operator.partial(**settings, **arguments, map_index_template="{{ task.role }}")
        return mapped.expand(role=resolve.output)
    return operator(**settings, **arguments)


def day_dag(
    *,
    dag_id: str,
    title: str,
    description: str,
    schedule: CronPartitionTimetable | CronTriggerTimetable,
    form: dict[str, Param],
    notes: str,
    paused: bool | None = None,
) -> DAG:
    """A DAG of all steps.

    Args:
        dag_id: Its id.
        title: Its name in the UI.
        description: One sentence.
        schedule: When it runs.
        form: The form for triggering it by hand; a scheduled run takes its defaults.
        notes: Shown as its documentation.
        paused: Whether a new installation has it paused; None for what Airflow's settings say.
    """
    with DAG(
        dag_id=dag_id,
        dag_display_name=title,
        description=description,
        schedule=schedule,
        start_date=datetime(2024, 1, 1, tzinfo=UTC),
        catchup=False,
        is_paused_upon_creation=paused,
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=48),
        deadline=deadline(),
        params=form,
        default_args={
            "owner": "tailtower",
            "on_failure_callback": TaskAlert(),
            "retry_delay": timedelta(seconds=30),
            "retry_exponential_backoff": 2,
            "max_retry_delay": timedelta(minutes=15),
        },
        tags=["tailtower", "two-tower", "retraining"],
        doc_md=notes,
    ) as dag:
        _add_tasks()
    return dag


def _add_tasks() -> None:
    """Adds all steps to the DAG that is being made."""
    # Task ids are the names of the steps, without the group's name in front; `train` is one of
    # them, so the groups' own ids differ from the names that are shown.
    groups = {
        name: TaskGroup(
            group_id=f"{name}_steps",
            group_display_name=name,
            tooltip=tooltip,
            prefix_group_id=False,
        )
        for name, tooltip in GROUPS.items()
    }
    with groups[RESOLVE.group]:
        resolve_run = ResolveRunOperator(**common_settings(RESOLVE))
    tasks: dict[str, Any] = {RESOLVE.name: resolve_run}
    for row in STEPS:
        with groups[row.group]:
            tasks[row.name] = make_task(row, resolve_run)
        for needed in row.needs:
            tasks[needed] >> tasks[row.name]
    with groups[RECONCILE.group]:
        # Below the last step, which is never reached when any step fails.
        tasks[STEPS[-1].name] >> ReconcileOperator(
            **common_settings(RECONCILE),
            step=RECONCILE.name,
            run_spec=RUN_SPEC,
            trigger_rule=TriggerRule.ONE_FAILED,
            # The task that failed has told everybody.
            on_failure_callback=None,
        )
