"""The one table of steps: its order drives the DAG and `tailtower run` alike.

Light on purpose: schedulers read it at parse time. A step's module is imported only by the
process that runs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from tasks.config import digest_of
from tasks.errors import ConfigError
from tasks.run_spec import RunSpec, StepResult

Group = Literal["data", "train", "decide"]


@dataclass(frozen=True)
class Step:
    """One step of the daily run."""

    name: str
    """Module below `tasks`, subcommand and task id."""
    summary: str
    """What it does, in one line."""
    needs: tuple[str, ...]
    """Steps that must have finished."""
    group: Group
    """Task group that shows it."""
    timeout_minutes: int
    """After this time a run of the step is stopped."""
    retries: int = 2
    """Retries after a transient error; other errors fail at once."""
    each_role: bool = False
    """Whether it runs once for each model: the candidate and the baselines."""
    pool: str | None = None
    """Scheduler pool that bounds how many run at once."""
    reads: tuple[str, ...] = ()
    """Files of the run that it acts on beside earlier results; a change makes it run again."""


STEPS: tuple[Step, ...] = (
    Step("await_partition", "wait for the day's data", ("resolve_run",), "data", 24 * 60),
    Step("validate", "check the data against its contracts", ("await_partition",), "data", 60),
    Step("count", "count every ID of every day", ("validate",), "data", 120),
    Step("vocabulary", "give frequent IDs rows of their own", ("count",), "data", 60),
    Step("examples", "encode and shuffle the examples", ("vocabulary",), "data", 240),
    Step(
        "train",
        "train the candidate and the baselines",
        ("examples",),
        "train",
        12 * 60,
        each_role=True,
        pool="training",
    ),
    Step("evaluate", "measure every model on the test day", ("train",), "decide", 120),
    Step("compare", "compare the models, with intervals", ("evaluate",), "decide", 30),
    Step("gate", "decide, and move the champion", ("compare",), "decide", 30),
    Step(
        "approve",
        "let a person decide on a proposed model",
        ("gate",),
        "decide",
        30,
        reads=("answer.json",),
    ),
    Step("publish", "make the champion available", ("approve",), "decide", 30),
)

RECONCILE = Step("reconcile", "end the MLflow runs of a failed run", (), "decide", 10)
"""What a scheduler runs after another step has failed for good."""

RESOLVE = Step("resolve_run", "fix the day, the window and every setting", (), "data", 10)

BY_NAME = {step.name: step for step in STEPS}


class StepModule(Protocol):
    """Shape of a step's module; a step with roles takes the role as second argument."""

    def run(self, spec: RunSpec) -> StepResult:
        """Does the work, or returns at once when it is done already."""


def names_of(step: Step, spec: RunSpec) -> tuple[str, ...]:
    """Names of a step's results in a run: one, or one for each role."""
    if step.each_role:
        return tuple(f"{step.name}.{role}" for role in spec.config.roles)
    return (step.name,)


def execute(spec: RunSpec, name: str, role: str | None = None) -> StepResult:
    """Runs a step unless its result is there and nothing it was made from has changed.

    Args:
        spec: The run.
        name: Name of the step.
        role: Role, for a step that runs once for each.

    Raises:
        ConfigError: There is no such step or role.
    """
    step = BY_NAME.get(name)
    if step is None:
        raise ConfigError(f"no step '{name}'", fix=f"steps: {', '.join(BY_NAME)}")
    if step.each_role and role not in spec.config.roles:
        roles = ", ".join(spec.config.roles)
        raise ConfigError(f"step '{name}' runs for one role", fix=f"give --role, one of: {roles}")
    full_name = f"{name}.{role}" if step.each_role else name
    upstream = _upstream(spec, step)
    done = spec.result(full_name)
    if done is not None and done.upstream == upstream and _outputs_present(spec, done):
        return done
    module = importlib.import_module(f"tasks.{name}")
    result = module.run(spec, role) if step.each_role else cast(StepModule, module).run(spec)
    result = result.model_copy(update={"step": full_name, "upstream": upstream})
    spec.lake().write_text(f"{spec.folder}/{full_name}.json", result.model_dump_json(indent=1))
    return result


def _upstream(spec: RunSpec, step: Step) -> dict[str, str]:
    """Digests of what a step is made from; results of earlier steps must be there."""
    lake = spec.lake()
    paths = {name: f"{spec.folder}/{name}" for name in step.reads}
    digests = {name: digest_of(lake.read_text(p)) for name, p in paths.items() if lake.exists(p)}
    for needed in step.needs:
        if needed in BY_NAME:
            for name in names_of(BY_NAME[needed], spec):
                result = spec.require(name)
                digests[name] = digest_of([result.digests, result.upstream])
    return digests


def _outputs_present(spec: RunSpec, result: StepResult) -> bool:
    lake = spec.lake()
    found = {name: lake.find(path) for name, path in result.outputs.items()}
    return all(
        published is not None and published.digest == result.digests[name]
        for name, published in found.items()
    )


def ordered(only: Sequence[str] = ()) -> tuple[Step, ...]:
    """The steps in their order, all of them or those named."""
    return tuple(step for step in STEPS if not only or step.name in only)
