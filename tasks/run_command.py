"""`tailtower run` and `tailtower step`: the pipeline and its steps without a scheduler."""

from __future__ import annotations

import json
import time
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config_file import load_config
from tasks.errors import ConfigError, PartitionMissingError, TrackingError
from tasks.progress import log
from tasks.run_spec import RunSpec, load_run_spec
from tasks.steps import BY_NAME, RECONCILE, RESOLVE, STEPS, execute
from tasks.training_job import STATUS, job_name, job_status

_STEP_HELP = ", ".join([RESOLVE.name, *BY_NAME])

ForceOption = Annotated[
    bool, typer.Option("--force", help="Start a new run even if this one was done before.")
]


def run_command(
    config: ConfigOption = DEFAULT_CONFIG,
    day: Annotated[
        str | None, typer.Option(help="Last test day, YYYY-MM-DD; default: the newest in the lake.")
    ] = None,
    first_day: Annotated[
        str | None, typer.Option("--from", help="Run every day from this one up to --day.")
    ] = None,
    settings: SetOption = None,
    force: ForceOption = False,
    wait: Annotated[
        int, typer.Option(help="Seconds to wait for a day that has not arrived.", min=0)
    ] = 0,
) -> None:
    """Run the whole pipeline for a day (or several), without Airflow.

    The same steps in the same order as the DAG. A run that was stopped is taken up where it
    was; a finished one returns at once.
    """
    from tasks.lake import Lake, day_range
    from tasks.report.terminal import print_comparison
    from tasks.resolve_run import INTERACTIONS, resolve

    loaded = load_config(config, settings or ())
    last = parse_day(day) if day else None
    days: list[date | None] = [last]
    if first_day:
        present = Lake(loaded.lake).days(INTERACTIONS)
        last = last or (present[-1] if present else None)
        if last is None or parse_day(first_day) > last:
            raise ConfigError("--from is later than the last day", where=first_day)
        days = [d for d in day_range(parse_day(first_day), last) if d in present]
    for one_day in days:
        spec = resolve(loaded, one_day, force=force)
        log("run", run_id=spec.run_id, day=spec.day, train_days=len(spec.train_days))
        try:
            run_all(spec, wait)
        except BaseException as error:
            _reconcile(spec, killed=isinstance(error, KeyboardInterrupt))
            raise
        print_comparison(spec)


def _reconcile(spec: RunSpec, *, killed: bool) -> None:
    """Ends the MLflow runs of a run that stopped; what stopped it is what people are told."""
    from tasks.reconcile import reconcile

    try:
        reconcile(spec, killed=killed)
    except TrackingError as error:
        log("reconcile.failed", reason=error.what)


def run_all(spec: RunSpec, wait: int = 0) -> None:
    """Runs all steps of a resolved run in their order."""
    for step in STEPS:
        for role in spec.config.roles if step.each_role else (None,):
            started = time.monotonic()
            _patiently(spec, step.name, role, wait)
            name = f"{step.name}.{role}" if role else step.name
            log("step", name=name, seconds=round(time.monotonic() - started, 1))


def _patiently(spec: RunSpec, name: str, role: str | None, wait: int) -> None:
    deadline = time.monotonic() + wait
    while True:
        try:
            execute(spec, name, role)
            return
        except PartitionMissingError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(min(30, max(1, deadline - time.monotonic())))


def step_command(
    name: Annotated[
        str,
        typer.Argument(
            help=f"One of: {_STEP_HELP}; or {STATUS}, how a training job stands; or "
            f"{RECONCILE.name}, which ends the MLflow runs of a run that failed."
        ),
    ],
    run_spec: Annotated[
        str | None, typer.Option(help="Location of run_spec.json; every step but resolve_run.")
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="For train: candidate, popularity or traditional.")
    ] = None,
    config: Annotated[
        Path, typer.Option("--config", "-c", help="resolve_run: the pipeline's YAML file.")
    ] = DEFAULT_CONFIG,
    day: Annotated[str | None, typer.Option(help="resolve_run: last test day.")] = None,
    settings: SetOption = None,
    force: ForceOption = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="resolve_run: print the plan of the run; write nothing."),
    ] = False,
) -> None:
    """Run one step; the last line on standard output is its result as JSON, with its `seconds`.

    resolve_run makes the run spec that all other steps read:
    `tailtower step resolve_run --config conf/demo.yaml --day 2026-01-08`.
    """
    if name == RESOLVE.name:
        from tasks.resolve_run import draft, resolve

        started = time.monotonic()
        loaded = load_config(config, settings or ())
        if dry_run:
            from tasks.preview import preview

            planned = draft(loaded, parse_day(day) if day else None, force=force)
            print(json.dumps({"run_id": planned.run_id, "plan": preview(planned)}))
            return
        spec = resolve(loaded, parse_day(day) if day else None, force=force)
        answer = {
            "run_spec": spec.uri,
            "run_id": spec.run_id,
            "day": spec.day.isoformat(),
            "roles": list(spec.config.roles),
            "window": [spec.train_days[0].isoformat(), spec.train_days[-1].isoformat()],
            "mlflow_run_id": spec.mlflow_run_id,
            "links": _links(spec),
            "seconds": round(time.monotonic() - started, 3),
        }
        print(json.dumps(answer))
        return
    if run_spec is None:
        raise ConfigError(f"step '{name}' needs a run spec", fix="give --run-spec")
    if name == STATUS:
        if role is None:
            raise ConfigError(f"'{STATUS}' is about one role", fix="give --role")
        spec = load_run_spec(run_spec)
        answer = {"job": job_name(spec.run_id, role), "status": job_status(spec, role).value}
        print(json.dumps(answer))
        return
    if name == RECONCILE.name:
        from tasks.reconcile import reconcile

        print(json.dumps({"ended": reconcile(load_run_spec(run_spec))}))
        return
    started = time.monotonic()
    result = execute(load_run_spec(run_spec), name, role)
    timed = result.model_copy(update={"seconds": round(time.monotonic() - started, 3)})
    print(timed.model_dump_json())


def _links(spec: RunSpec) -> dict[str, str]:
    """Page of the day's run in MLflow, when MLflow has pages."""
    from tasks.tracking.pages import run_page

    page = run_page(spec.config, spec.mlflow_run_id) if spec.mlflow_run_id else None
    return {"mlflow_run": page} if page else {}


def parse_day(text: str) -> date:
    """Reads a day.

    Raises:
        ConfigError: It is not YYYY-MM-DD.
    """
    try:
        return datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError as error:
        raise ConfigError(
            f"'{text}' is not a day", where="--day", fix="write it as 2026-01-31"
        ) from error
