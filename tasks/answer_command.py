"""`tailtower answer`: a person's decision about a proposed model."""

from __future__ import annotations

import getpass
from enum import StrEnum
from typing import Annotated

import typer

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config_file import load_config


class Verdict(StrEnum):
    """What to do with the model."""

    APPROVE = "approve"
    REJECT = "reject"


def answer_command(
    run: Annotated[
        str,
        typer.Argument(
            help="The run: its id, its day, its MLflow run id, or where its run_spec.json is."
        ),
    ],
    verdict: Annotated[Verdict, typer.Argument(help="What to do with the proposed model.")],
    reason: Annotated[str, typer.Option(help="Why; kept with the model's version.")] = "",
    by: Annotated[str | None, typer.Option(help="Who answers; default: the login name.")] = None,
    only_record: Annotated[
        bool,
        typer.Option("--only-record", help="Leave the steps `approve` and `publish` to others."),
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    settings: SetOption = None,
) -> None:
    """Approve or reject a model that the gate proposed (`gate.promote: ask`).

    Approving makes it champion, unless another model became champion since it was compared.
    """
    from tasks.approve import give_answer
    from tasks.evaluation.stored_runs import find_model
    from tasks.progress import console
    from tasks.run_spec import RUN_SPEC, load_run_spec
    from tasks.steps import execute

    if run.endswith(f"/{RUN_SPEC}"):
        spec = load_run_spec(run)
    else:
        spec = find_model(load_config(config, settings or ()), run).spec
    answer = give_answer(
        spec, approved=verdict is Verdict.APPROVE, by=by or getpass.getuser(), reason=reason
    )
    if only_record:
        return
    execute(spec, "approve")
    facts = execute(spec, "publish").facts
    served = "is served now" if "pointer" in facts else "is not served"
    console.print(
        f"version {facts['version']} of {spec.day}: {answer.sentence}; it {served}",
        highlight=False,
        soft_wrap=True,
    )
