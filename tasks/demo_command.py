"""`tailtower demo`: logs, local stack, several days through Airflow, and the comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from tasks.command_options import DEFAULT_CONFIG
from tasks.config import PipelineConfig
from tasks.config_file import load_config, load_yaml
from tasks.errors import DataError
from tasks.lake import Lake
from tasks.progress import console, log

if TYPE_CHECKING:
    from tasks.local_stack.airflow_client import AirflowClient, TaskInstance

DAG_ID = "daily_retrain"
_OWN_CONFIG = Path("conf/own_data.yaml")
_PIPELINES = Path("var/pipelines")
_FIRST_DEMO_DAY = date(2026, 1, 1)
# Days of synthetic logs before the first day that is trained and gated.
_DEMO_HISTORY = 5
_RUN_TIMEOUT_SECONDS = 3600.0
_LOG_LINES = 25
_OVER = ("success", "failed", "skipped", "upstream_failed")


def demo_command(
    data: Annotated[
        str | None,
        typer.Option(help="Your interactions: file, folder or glob. Default: synthetic."),
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="YAML file that names the columns of --data.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How many of the newest days to run.")] = 3,
    nodes: Annotated[
        int, typer.Option(min=1, help="Train over so many Dask workers, started on this machine.")
    ] = 1,
) -> None:
    """Start everything, run several days through Airflow, and print the comparison.

    What was done before is not done again: a running stack is used as it is, ingested days stay,
    finished days are skipped. Airflow and MLflow stay up; `tailtower down` stops them.
    """
    from tasks.local_stack.airflow_client import AirflowClient
    from tasks.local_stack.commands import show, up
    from tasks.local_stack.settings import settings_from_environment

    given = _synthetic(days) if data is None else _ingested(data, mapping)
    with _over_nodes(given, nodes) as path:
        config = load_config(path)
        chosen = _newest_days(config, days)
        info = up(settings_from_environment(extra={"TAILTOWER_CONFIG": str(DEFAULT_CONFIG)}))
        show(info)
        with AirflowClient.of_stack(info) as airflow:
            airflow.wait_for_dag(DAG_ID)
            airflow.unpause(DAG_ID)
            for day in chosen:
                _run_day(airflow, path, config, day)
    _print_results(config, chosen)
    show(info)


@contextmanager
def _over_nodes(path: Path, nodes: int) -> Iterator[Path]:
    """The pipeline, with its training spread over workers that live as long as the context.

    A pipeline of its own, by its name, so that its runs stand beside those on one node.
    """
    if nodes == 1:
        yield path
        return
    from distributed import LocalCluster

    name = f"{load_config(path).name}-{nodes}-nodes"
    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=nodes,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        config = load_config(
            path,
            [
                f"name={name}",
                f"dask.scheduler={cluster.scheduler_address}",
                "launch.kind=dask",
                f"launch.nodes={nodes}",
            ],
        )
        own = _PIPELINES / f"{name}.yaml"
        own.parent.mkdir(parents=True, exist_ok=True)
        head = f"# Made from {path}, for workers that live as long as `tailtower demo --nodes`.\n"
        own.write_text(head + yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        log("dask", scheduler=cluster.scheduler_address, workers=nodes)
        yield own


def _synthetic(days: int) -> Path:
    from tasks.demo_data import DemoSettings, generate

    config = load_config(DEFAULT_CONFIG)
    generate(DemoSettings(), Lake(config.lake), start=_FIRST_DEMO_DAY, days=_DEMO_HISTORY + days)
    return DEFAULT_CONFIG


def _ingested(data: str, mapping: Path | None) -> Path:
    from tasks.ingest import IngestMapping, ingest
    from tasks.ingest.report import render
    from tasks.own_pipeline import write_own_pipeline

    settings = load_yaml(mapping, IngestMapping) if mapping is not None else None
    name = _slug((mapping or Path(data)).stem)
    lake = Lake(f"var/lakes/{name}")
    report = ingest(data, lake, settings)
    console.print(render(report))
    return write_own_pipeline(_OWN_CONFIG, name, lake)


def _slug(text: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return slug if slug[:1].isalpha() else f"data-{slug}".rstrip("-")


def _newest_days(config: PipelineConfig, wanted: int) -> list[date]:
    """The newest days that have something to train on before them."""
    present = Lake(config.lake).days("raw/interactions")
    usable = present[config.data.test_days :]
    if not usable:
        raise DataError(
            f"the log has {len(present)} days, too few to train on and test on",
            where=config.lake,
            fix=f"give at least {config.data.test_days + 1} days",
        )
    return usable[-wanted:]


def _run_day(airflow: AirflowClient, path: Path, config: PipelineConfig, day: date) -> None:
    """Runs a day through the DAG, or finds it done; a failed run is followed by a fresh one."""
    name = f"{config.name}__{day}__{config.digest()[:8]}"
    attempt = 1
    parameters = {"day": day.isoformat(), "config": str(path.resolve())}
    run = airflow.trigger(DAG_ID, name, parameters=parameters)
    while run.state == "failed":
        attempt += 1
        run = airflow.trigger(DAG_ID, f"{name}__{attempt}", parameters=parameters)
    if run.state == "success":
        log("day", day=day, state="done before")
        return
    log("day", day=day, page=airflow.run_page(DAG_ID, run.run_id))
    shown: set[str] = set()

    def show_finished(tasks: Sequence[TaskInstance]) -> None:
        for task in tasks:
            label = task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]"
            if task.state in _OVER and label not in shown:
                shown.add(label)
                log("task", day=day, task=label, state=task.state, seconds=round(task.seconds or 0))

    run = airflow.wait_for_run(
        DAG_ID, run.run_id, timeout=_RUN_TIMEOUT_SECONDS, on_change=show_finished
    )
    if run.state != "success":
        raise _failed_run(airflow, run.run_id, day)


def _failed_run(airflow: AirflowClient, run_id: str, day: date) -> DataError:
    """The error of a failed run: its first failed task and the end of that task's log."""
    failed = [task for task in airflow.task_instances(DAG_ID, run_id) if task.state == "failed"]
    what = f"the run of {day} failed"
    if failed:
        task = failed[0]
        text = airflow.task_log(
            DAG_ID, run_id, task.task_id, try_number=task.try_number, map_index=task.map_index
        )
        what += f" at '{task.task_id}'; the end of its log:\n"
        what += "\n".join(f"  | {line}" for line in text.splitlines()[-_LOG_LINES:])
    return DataError(
        what,
        where=airflow.run_page(DAG_ID, run_id),
        fix="correct the cause and start the command again: finished steps stay finished",
    )


def _print_results(config: PipelineConfig, days: Sequence[date]) -> None:
    from tasks.report.terminal import print_comparison
    from tasks.resolve_run import resolve

    for day in days:
        print_comparison(resolve(config, day))
