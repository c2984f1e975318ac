"""Operators that run one step of a run each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, ResumableJobMixin
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from pydantic import JsonValue

from dags.operators.champion import CHAMPION
from dags.operators.links import (
    ComparisonLink,
    DashboardLink,
    DataDocsLink,
    MlflowRunLink,
    TrainingLogLink,
    web_addresses,
)
from dags.operators.process_task import ProcessTask, log_facts, require_result
from dags.operators.step_failure import is_not_yet, is_nothing_to_do
from dags.run_day import resolve_day
from dags.run_note import decided_note, resolved_note, write_note
from dags.settings import config_path
from dags.trigger_form import DRY_RUN, overrides
from tasks.steps import RESOLVE

_MANUAL = "manual"
_NOTE = "note"
_JOB_STATUS = "job_status"

_FOR_PEOPLE = {"decision", "reason", "proposal"}
"""Facts that get an XCom of their own, for people to find at a glance and for forms to show."""


class StepOperator(ProcessTask):
    """Runs one step of a run.

    Args:
        step: Name of the step.
        run_spec: Location of the run's `run_spec.json`.
        role: For a step that runs once for each role.
    """

    template_fields: Sequence[str] = ("run_spec", "role")

    def __init__(self, *, step: str, run_spec: str, role: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.run_spec = run_spec
        self.role = role

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the step.

        Returns:
            Its result: outputs, digests and facts.

        Raises:
            AirflowFailException: It failed in a way that comes again.
            AirflowException: It failed in a way that may go away.
        """
        return self.run_step(context)

    def run_step(self, context: Context) -> dict[str, Any]:
        """See `execute`."""
        ended = self.run_process(context, step_arguments(self.step, self.run_spec, self.role))
        result = require_result(self.step, ended)
        for key in _FOR_PEOPLE & result.get("facts", {}).keys():
            context["ti"].xcom_push(key=key, value=result["facts"][key])
        return self.keep(context, result)


class ValidateOperator(StepOperator):
    """Checks the data against its contracts; broken ones fail at once, their page linked."""

    operator_extra_links = (DataDocsLink(),)


class DaskOperator(StepOperator):
    """A step whose tasks run on Dask; its dashboard is linked while the step runs."""

    operator_extra_links = (DashboardLink(),)


class TrainOperator(ResumableJobMixin, StepOperator):
    """Trains the model of one role, in a job that outlives the task.

    The step starts the ranks outside its own process group and follows them. The job's name
    follows from run and role alone and is stored before anything is started, so that there is no
    moment in which ranks run that nobody knows of: a retry after a kill, and a task that was
    cleared, find the job, and go on with it whatever state it is in. Stopping the task politely
    (`on_kill`) ends the job on every host.
    """

    operator_extra_links = (MlflowRunLink(), TrainingLogLink())
    external_id_key = "training_job"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._result: dict[str, Any] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Trains; the result and the errors are those of `StepOperator.execute`."""
        result: dict[str, Any] = self.execute_resumable(context)
        return result

    def submit_job(self, context: Context) -> str:
        """The job's name. The step starts the job, unless it finds it running."""
        return f"{PurePosixPath(self.run_spec).parent.name}/{self.role}"

    def get_job_status(self, external_id: JsonValue, context: Context) -> str:
        """How the job stands, from its launcher."""
        ended = self.run_process(context, step_arguments(_JOB_STATUS, self.run_spec, self.role))
        return str(require_result(_JOB_STATUS, ended)["status"])

    def is_job_active(self, status: str) -> bool:
        """Whether ranks are at work."""
        return status == "running"

    def is_job_succeeded(self, status: str) -> bool:
        """Whether the weights are there."""
        return status == "succeeded"

    def poll_until_complete(  # type: ignore[override]
        self, external_id: JsonValue, context: Context
    ) -> dict[str, Any]:
        """Follows the job to its end, and publishes what it has trained.

        The mixin makes what this returns the task's result when it found the job at work.
        """
        self._result = self.run_step(context)
        return self._result

    def get_job_result(self, external_id: JsonValue, context: Context) -> dict[str, Any]:
        """The step's result."""
        return self._result if self._result is not None else self.run_step(context)


class CompareOperator(StepOperator):
    """A step about the comparison of the run's models."""

    operator_extra_links = (ComparisonLink(),)


class GateOperator(StepOperator):
    """Decides, and states the decision in the run's note."""

    operator_extra_links = (ComparisonLink(),)

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the step; see `StepOperator.execute`."""
        self.keep_comparison(context)
        return note_decision(context, self.run_step(context))

    def keep_comparison(self, context: Context) -> None:
        """Makes the button lead where that of `compare` leads."""
        self._keep_links(context, {ComparisonLink.address: comparison_of(context)})


def comparison_of(context: Context) -> str | None:
    """Page of the run's comparison, once there is one."""
    page: str | None = context["ti"].xcom_pull(task_ids="compare", key=ComparisonLink().xcom_key)
    return page


def note_decision(context: Context, result: dict[str, Any]) -> dict[str, Any]:
    """Adds a decision to the run's note; returns the result as it is."""
    ti, facts = context["ti"], result.get("facts", {})
    if "decision" in facts:
        write_note(
            context,
            decided_note(
                ti.xcom_pull(task_ids=RESOLVE.name, key=_NOTE) or "",
                facts["decision"],
                facts.get("reason", ""),
                comparison_of(context),
            ),
        )
    return result


class ResolveRunOperator(ProcessTask):
    """First step: fixes the run from its day, the trigger form and the pipeline file.

    Its return value is the list of roles, because Airflow maps tasks over return values only;
    `run_spec`, `run_id`, `day`, `window` and `seconds` are XComs of those names. A dry run leaves
    the plan instead, as XCom `plan` and as the run's note.
    """

    operator_extra_links = (MlflowRunLink(),)

    def __init__(self, **kwargs: Any) -> None:
        # The champion of that moment is what the candidate has to beat; naming it here also
        # lists the asset in the UI before its first event.
        super().__init__(inlets=[CHAMPION], **kwargs)

    def execute(self, context: Context) -> list[str]:
        """Resolves the run.

        Returns:
            The roles to train.

        Raises:
            AirflowSkipException: It was a dry run; or the logs end long before the day, and nobody
                asked for the day.
            AirflowFailException: The form or the pipeline file is wrong.
            AirflowException: A service that is needed does not answer.
        """
        ended = self.run_process(context, self._arguments(context))
        if is_nothing_to_do(ended.status) and context["dag_run"].run_type != _MANUAL:
            # A schedule that outlives its data would turn red every night and hide real failures.
            raise AirflowSkipException("\n".join(ended.last_lines))
        result = require_result(RESOLVE.name, ended)
        if "plan" in result:
            self.log.info("plan\n%s", result["plan"])
            context["ti"].xcom_push(key="plan", value=result["plan"])
            write_note(context, result["plan"])
            raise AirflowSkipException("a dry run: the plan is in the run's note")
        for key in ("run_spec", "run_id", "day", "window", "seconds"):
            if key in result:
                context["ti"].xcom_push(key=key, value=result[key])
        self.log.info("run", **log_facts(result))
        links = web_addresses(result.get("links"))
        self._keep_links(context, links)
        if "window" in result:
            note = resolved_note(result["run_id"], result["day"], result["window"], links)
            context["ti"].xcom_push(key=_NOTE, value=note)
            write_note(context, note)
        try:
            return [str(role) for role in result["roles"]]
        except KeyError as missing:
            raise AirflowFailException(f"the resolved run has no {missing}: {result}") from None

    @staticmethod
    def _arguments(context: Context) -> list[str]:
        params = context["params"]
        try:
            day = resolve_day(
                params.get("day"), context.get("partition_key"), context["dag_run"].run_after
            )
        except ValueError as error:
            raise AirflowFailException(str(error)) from error
        arguments = [RESOLVE.name, "--config", params.get("config") or config_path()]
        arguments += ["--day", day.isoformat()]
        for override in overrides(params):
            arguments += ["--set", override]
        if params.get("force"):
            arguments.append("--force")
        if params.get(DRY_RUN):
            arguments.append("--dry-run")
        return arguments


class AwaitPartitionSensor(ProcessTask, BaseSensorOperator):
    """Waits for the day's data without holding a worker: each look is a run of the step.

    Args:
        step: Name of the step.
        run_spec: Location of the run's `run_spec.json`.
    """

    template_fields = ("run_spec",)

    def __init__(self, *, step: str, run_spec: str, **kwargs: Any) -> None:
        super().__init__(mode="reschedule", **kwargs)
        self.step = step
        self.run_spec = run_spec

    def poke(self, context: Context) -> PokeReturnValue:
        """Looks once.

        Raises:
            AirflowFailException: Looking failed in a way that comes again.
            AirflowException: Looking failed in a way that may go away.
        """
        ended = self.run_process(context, step_arguments(self.step, self.run_spec))
        if is_not_yet(ended.status):
            self.log.info("the data is not there yet", next_look_seconds=self.poke_interval)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(True, self.keep(context, require_result(self.step, ended)))


def step_arguments(step: str, run_spec: str, role: str | None = None) -> list[str]:
    """Arguments of `python -m tasks` for a step."""
    arguments = [step, "--run-spec", run_spec]
    return arguments if role is None else [*arguments, "--role", role]
