"""Operators that run one step of a run each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, ResumableJobMixin
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from pydantic import JsonValue

from dags.operators.champion import CHAMPION
from dags.operators.links import ComparisonLink, DataDocsLink, MlflowRunLink
from dags.operators.process_task import ProcessTask, log_facts, require_result
from dags.operators.step_failure import is_not_yet, is_nothing_to_do
from dags.run_day import resolve_day
from dags.settings import config_path
from dags.trigger_form import overrides
from tasks.steps import RESOLVE

_MANUAL = "manual"
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


class TrainOperator(ResumableJobMixin, StepOperator):
    """Trains the model of one role, in a job that outlives the task.

    The step starts the ranks outside its own process group and follows them. The job's name
    follows from run and role alone and is stored before anything is started, so that there is no
    moment in which ranks run that nobody knows of: a retry after a kill, and a task that was
    cleared, find the job, and go on with it whatever state it is in. Stopping the task politely
    (`on_kill`) ends the job on every host.
    """

    operator_extra_links = (MlflowRunLink(),)
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


class ResolveRunOperator(ProcessTask):
    """First step: fixes the run from its day, the trigger form and the pipeline file.

    Its return value is the list of roles, because Airflow maps tasks over return values only;
    `run_spec`, `run_id`, `day`, `window` and `seconds` are XComs of those names.
    """

    def __init__(self, **kwargs: Any) -> None:
        # The champion of that moment is what the candidate has to beat; naming it here also
        # lists the asset in the UI before its first event.
        super().__init__(inlets=[CHAMPION], **kwargs)

    def execute(self, context: Context) -> list[str]:
        """Resolves the run.

        Returns:
            The roles to train.

        Raises:
            AirflowSkipException: The logs end long before the day, and nobody asked for the day.
            AirflowFailException: The form or the pipeline file is wrong.
            AirflowException: A service that is needed does not answer.
        """
        ended = self.run_process(context, self._arguments(context))
        if is_nothing_to_do(ended.status) and context["dag_run"].run_type != _MANUAL:
            # A schedule that outlives its data would turn red every night and hide real failures.
            raise AirflowSkipException("\n".join(ended.last_lines))
        result = require_result(RESOLVE.name, ended)
        for key in ("run_spec", "run_id", "day", "window", "seconds"):
            if key in result:
                context["ti"].xcom_push(key=key, value=result[key])
        self.log.info("run", **log_facts(result))
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
