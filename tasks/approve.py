"""Step: a person's answer about a candidate that the gate proposed (`gate.promote: ask`).

The answer is a file of the run, so the step asks nobody: the Airflow task and
`tailtower answer` both write it before they run the step. Without one the model stays proposed.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from models.config import Settings
from tasks import tracking
from tasks.errors import ConfigError
from tasks.gate import check_champion
from tasks.lake import Output
from tasks.progress import log
from tasks.promotion import make_champion
from tasks.run_spec import RunSpec, StepResult
from tasks.tracking import registry
from tasks.tracking.runs import parent_of

ANSWER = "answer.json"
"""File of a run with the person's answer."""
APPROVAL = "approval.json"


class Answer(Settings):
    """What a person decided about a proposed model."""

    approved: bool
    """Whether it becomes champion."""
    by: str
    """Who answered."""
    reason: str = ""
    """Why, in the person's words."""
    at: datetime
    """When, with time zone."""

    @property
    def sentence(self) -> str:
        """The answer for people to read."""
        verb = "approved" if self.approved else "rejected"
        return f"{verb} by {self.by}" + (f": {self.reason}" if self.reason else "")


def give_answer(spec: RunSpec, *, approved: bool, by: str, reason: str = "") -> Answer:
    """Records a person's answer, for the step to act on.

    Args:
        spec: The run.
        approved: Whether its model becomes champion.
        by: Who answers.
        reason: Why.

    Raises:
        ConfigError: The run's model was not proposed, or another answer was given before.
    """
    gate = spec.require("gate").facts
    if gate["decision"] != "proposed":
        raise ConfigError(
            f"the model of run '{spec.run_id}' waits for no answer: it was {gate['decision']}",
            where=spec.uri,
            fix="only `gate.promote: ask` proposes; a champion is taken back by "
            "`tailtower rollback`",
        )
    earlier = read_answer(spec)
    if earlier is not None:
        if earlier.approved == approved:
            return earlier
        raise ConfigError(
            f"run '{spec.run_id}' has an answer: {earlier.sentence} ({earlier.at:%Y-%m-%d %H:%M})",
            where=f"{spec.lake().url}/{spec.folder}/{ANSWER}",
            fix="run the day again with --force to decide anew",
        )
    answer = Answer(approved=approved, by=by, reason=reason, at=datetime.now(UTC))
    lake = spec.lake()
    lake.write_text(f"{spec.folder}/{ANSWER}", answer.model_dump_json(indent=1))
    return answer


def read_answer(spec: RunSpec) -> Answer | None:
    """The answer that was given about a run's model, if there is one."""
    lake, path = spec.lake(), f"{spec.folder}/{ANSWER}"
    return Answer.model_validate_json(lake.read_text(path)) if lake.exists(path) else None


def run(spec: RunSpec) -> StepResult:
    """Acts on the answer about a proposed model; hands every other decision of the gate on.

    Returns:
        Facts `decision`, `reason`, `promoted`, `version`; one output, `approval`, when somebody
        answered.

    Raises:
        TrackingError: MLflow cannot be reached, or another model became champion meanwhile.
    """
    gate = spec.require("gate")
    handed_on = {key: gate.facts[key] for key in ("decision", "reason", "promoted", "version")}
    if gate.facts["decision"] != "proposed":
        return StepResult.of("approve", {}, **handed_on)
    answer = read_answer(spec)
    if answer is None:
        log("approve.waits", answer_with=f"tailtower answer {spec.run_id} approve --reason …")
        return StepResult.of("approve", {}, **handed_on)
    version = gate.facts["version"]
    if answer.approved:
        check_champion(spec)
        make_champion(spec.config, version)
        registry.remove_alias(spec.config, registry.CHALLENGER)
    decision = "promoted" if answer.approved else "rejected"
    reason = f"{answer.sentence} ({gate.facts['reason']})"

    def write(output: Output) -> None:
        record = {"run_id": spec.run_id, "version": version, **answer.model_dump(mode="json")}
        output.write_bytes(APPROVAL, json.dumps(record, indent=1).encode())

    published = spec.lake().build(
        "reports/approval",
        spec.day,
        write,
        inputs={"decision": gate.digests["decision"]},
        settings=answer.model_dump(mode="json"),
    )
    tags = {"tailtower.decision": decision, "tailtower.reason": reason}
    registry.set_version_tags(spec.config, version, tags)
    parent = parent_of(spec)
    tracking.log_values(
        spec.config,
        parent,
        metrics={"gate/promoted": float(answer.approved)},
        tags={**tags, "mlflow.note.content": f"**{answer.sentence}**\n\n{gate.facts['proposal']}"},
    )
    text = spec.lake().read_text(published.file(APPROVAL))
    tracking.log_artifacts(spec.config, parent, {APPROVAL: text})
    return StepResult.of(
        "approve",
        {"approval": published},
        decision=decision,
        reason=reason,
        promoted=answer.approved,
        version=version,
    )
