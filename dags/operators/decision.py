"""Operators of the end of a run: a person's answer, the champion's asset, a failed run's end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context, Param
from airflow.sdk.exceptions import AirflowFailException

from dags.operators.champion import CHAMPION, CHAMPION_OUTLET
from dags.operators.step import CompareOperator, GateOperator, StepOperator, note_decision
from dags.operators.step_failure import failure
from dags.settings import answer_hours


class ApproveOperator(GateOperator, HITLOperator):
    """Asks a person about a model that the gate proposed; passes every other decision on.

    The question stands under *Required actions* with the comparison's table. No answer in time
    rejects the model.

    Args:
        step: Name of the step.
        run_spec: Location of the run's `run_spec.json`.
        decision: What the gate decided.
        proposal: The comparison in Markdown.
    """

    template_fields: Sequence[str] = (
        *StepOperator.template_fields,
        "decision",
        *HITLOperator.template_fields,
    )
    APPROVE = "Approve"
    REJECT = "Reject"

    def __init__(self, *, decision: str, proposal: str, **kwargs: Any) -> None:
        # The DAG's own form comes along; Airflow adds it again below, apart from the question's.
        kwargs.pop("params", None)
        super().__init__(
            subject="Is this model to be served?",
            body=proposal,
            options=[self.APPROVE, self.REJECT],
            defaults=[self.REJECT],
            params={
                # With an empty text as default the page keeps its buttons disabled until
                # something is typed.
                "reason": Param(
                    None,
                    type=["null", "string"],
                    title="Reason",
                    description="Kept with the run.",
                )
            },
            response_timeout=timedelta(hours=answer_hours()),
            **kwargs,
        )
        self.decision = decision

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the step, after the answer where one is needed.

        Raises:
            TaskAwaitingInput: A person is to answer; the task goes on in `execute_complete`.
            AirflowFailException: It failed in a way that comes again.
            AirflowException: It failed in a way that may go away.
        """
        self.keep_comparison(context)
        if self.decision == "proposed":
            HITLOperator.execute(self, context)
        return self.run_step(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Hands the answer to the step."""
        answer = super().execute_complete(context, event)
        approved = self.APPROVE in answer["chosen_options"]
        user = answer["responded_by_user"]
        by = user["name"] if user else "nobody in time"
        arguments = [
            *("answer", self.run_spec, "approve" if approved else "reject"),
            *("--by", by, "--reason", answer["params_input"].get("reason") or ""),
            "--only-record",
        ]
        ended = self.run_process(context, arguments, module="tasks.cli")
        if ended.status:
            raise failure("answer", ended)
        return note_decision(context, self.run_step(context))


class PublishOperator(CompareOperator):
    """Makes the champion available, and tells its consumers when it is a new one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(outlets=[CHAMPION_OUTLET], **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the step; emits an event of the asset `CHAMPION` when this run's model is served.

        A run that was promoted and overtaken by a later one before it published emits none.
        """
        result = super().execute(context)
        facts = result.get("facts", {})
        if "pointer" in facts:
            extra = {key: facts.get(key) for key in ("run_id", "version", "day")}
            extra["run_spec"] = self.run_spec
            context["outlet_events"][CHAMPION_OUTLET].add(CHAMPION, extra=extra)
            self.log.info("new champion", **extra)
        else:
            self.log.info("no new champion, so no event for its consumers")
        return result


class ReconcileOperator(StepOperator):
    """After a task has failed for good: ends the run in MLflow, and keeps the DAG run red."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the step, then fails: the last task of a DAG run decides how the run ends.

        Raises:
            AirflowFailException: Always, once MLflow says how the run ended.
            AirflowException: MLflow does not answer; it may later.
        """
        if self.run_spec.endswith(".json"):  # else the run was not even resolved
            self.run_step(context)
        raise AirflowFailException("an earlier task failed; this one only ended the run in MLflow")
