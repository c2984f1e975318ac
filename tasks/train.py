"""Step: trains one model of the run and publishes its servable bundle.

The ranks run outside this process's group. When this process is killed they go on, and the next
attempt meets them; when they are killed, the next attempt resumes from their last checkpoint.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal, cast

from models.config import TrainJob
from tasks import tracking, warm_start
from tasks.config import digest_of
from tasks.errors import DataError, TrainingError
from tasks.lake import Output, Published
from tasks.launch import JobShape, JobStatus, Launcher
from tasks.launch.choice import launcher_of, shape_of
from tasks.launch.protocol import CHECKPOINTS, JOB
from tasks.progress import Ticker, log, progress
from tasks.run_spec import RunSpec, StepResult
from tasks.serving.bundles import MODEL
from tasks.tracking.pages import artifact_page, run_page
from tasks.train_worker import ERROR, PROGRESS, TRACKING
from tasks.training_job import job_folder

Kind = Literal["two_tower", "traditional", "popularity"]

_KINDS: dict[str, Kind] = {"candidate": "two_tower"}
TRACES = "traces"
"""Folder beside the checkpoints, and of the run's artifacts, with traces of steps."""
LOGS = "logs"
"""Folder of the run's artifacts with what the ranks wrote."""
_POLL_SECONDS = 0.25
_TAIL_LINES = 15


def run(spec: RunSpec, role: str) -> StepResult:
    """Trains the model of a role, or finds it trained.

    Args:
        spec: The run.
        role: `candidate` or a baseline's name.

    Raises:
        TrainingError: The job ended without a model; a retry resumes it.
        DataError: The examples cannot be trained on.
    """
    kind = _KINDS.get(role, cast(Kind, role))
    examples = spec.output("examples", "examples")
    child = tracking.start_child_run(spec, role)
    tracking.log_dataset_inputs(spec, child, {"examples": ("training", examples)})
    links = {"mlflow_run": page} if (page := run_page(spec.config, child)) else {}
    if links:
        # The scheduler shows the link while the training still runs.
        log("links", **links)
    lake = spec.lake()
    path = f"models/{spec.run_id}/{role}"
    published = lake.find(path)
    inputs = _inputs(spec, kind, examples)
    if published is None or published.manifest.inputs != inputs:
        weights, earlier = None, None
        if kind != "popularity":
            weights, earlier = _train(spec, role, kind, examples, child)

        def write(output: Output) -> None:
            _write_bundle(spec, role, kind, examples, weights, output)
            if earlier is not None:
                output.meta["warm_start"] = earlier
            if weights is not None:
                # The bundle has its own copy; checkpoints of a finished model serve nobody.
                shutil.rmtree(weights.parent / CHECKPOINTS, ignore_errors=True)

        if kind == "two_tower" and weights is not None:
            # First, because a model that is there is not trained again.
            warm_start.publish_state(spec, role, weights)
        published = lake.publish(path, write, dataset="models", day=spec.day, inputs=inputs)
    tracking.finish_run(spec.config, child)
    outputs, facts = {MODEL: published}, dict(published.manifest.meta)
    state = lake.find(warm_start.state_path(spec.run_id, role))
    if state is not None:
        outputs[warm_start.STATE] = state
        facts["optimizer_state_bytes"] = state.manifest.meta["bytes"]
    logs = _newest_logs(launcher_of(spec.config), job_folder(spec, role))
    if logs and (page := artifact_page(spec.config, child, f"{LOGS}/{logs[0].name}")):
        links["training_log"] = page
    return StepResult.of(f"train.{role}", outputs, mlflow_run_id=child, links=links, **facts)


def _inputs(spec: RunSpec, kind: Kind, examples: Published) -> dict[str, str]:
    vocabularies = {
        f"vocabulary/{table}": spec.output("vocabulary", table).digest
        for table in spec.config.tables
    }
    inputs = {"examples": examples.digest, **vocabularies}
    if kind == "two_tower" and spec.warm_start is not None:
        inputs["warm_start"] = spec.warm_start.run_id
    return inputs


def _train(
    spec: RunSpec, role: str, kind: Kind, examples: Published, child: str
) -> tuple[Path, dict[str, Any] | None]:
    """Runs the training job; returns the folder of the weights, and what they continue from."""
    folder = job_folder(spec, role)
    folder.mkdir(parents=True, exist_ok=True)
    job = job_of(spec, kind, examples, folder)
    if kind != "two_tower":
        _run_job(spec, role, kind, job, folder, child)
        return Path(job.output_dir), None
    with warm_start.earlier_bundle(spec) as bundle:
        facts = None
        if bundle is not None:
            start, facts = warm_start.prepare(spec, bundle, folder / "warm_start")
            job = job.model_copy(
                update={"warm_start": start, "since_us": warm_start.since_us(spec)}
            )
            _tell_of_warm_start(spec, child, facts)
        _run_job(spec, role, kind, job, folder, child)
    return Path(job.output_dir), facts


def _tell_of_warm_start(spec: RunSpec, child: str, facts: dict[str, Any]) -> None:
    """Says in the log and in MLflow from which run the training continues, and with which rows."""
    log("train.warm_start", **facts)
    numbers = {
        f"warm_start/{table}/{name}_rows": float(value)
        for table, rows in facts["tables"].items()
        if isinstance(rows, dict)
        for name, value in rows.items()
    }
    tags = {"tailtower.warm_start": facts["run_id"], "tailtower.warm_start.rows": json.dumps(facts)}
    tracking.log_values(spec.config, child, metrics=numbers, tags=tags)


def _run_job(spec: RunSpec, role: str, kind: Kind, job: TrainJob, folder: Path, child: str) -> None:
    """Runs the training job to its end."""
    target = {"uri": tracking.tracking_uri(spec.config), "run_id": child, "role": role}
    (folder / TRACKING).write_text(json.dumps(target))
    (folder / ERROR).unlink(missing_ok=True)
    launcher = launcher_of(spec.config)
    if launcher.status(folder) is JobStatus.RUNNING:
        log("train.found", role=role, note="the job of an earlier attempt is still running")
    else:
        (folder / JOB).write_text(job.model_dump_json(indent=1))
    shown = {path: path.stat().st_size for path in launcher.logs(folder)}
    with _cancelled_by_sigterm(launcher, folder):
        launcher.submit(folder, _shape(spec, kind))
        status = _follow(launcher, folder, shown, role)
    if status is not JobStatus.SUCCEEDED:
        raise _failure(launcher, folder, shown, role)
    tracking.log_artifact_files(spec.config, child, LOGS, _newest_logs(launcher, folder))
    traces = sorted((folder / TRACES).glob("trace-*"))
    tracking.log_artifact_files(spec.config, child, TRACES, traces)


def _newest_logs(launcher: Launcher, folder: Path) -> list[Path]:
    """The newest log of each node and of the supervisor: later attempts go on where others died."""
    return list({path.name: path for path in launcher.logs(folder)}.values())


def _shape(spec: RunSpec, kind: Kind) -> JobShape:
    shape = shape_of(spec.config)
    # One process with dense gradients: what one would write by hand.
    return shape.on_one_node() if kind == "traditional" else shape


def job_of(spec: RunSpec, kind: Kind, examples: Published, folder: Path) -> TrainJob:
    """The job that trains a model of a run.

    Args:
        spec: The run.
        kind: Which trainer; not popularity, which nobody trains.
        examples: Its examples.
        folder: Local folder for checkpoints and weights.
    """
    lake = spec.lake()
    meta = examples.manifest.meta
    config = spec.config
    training = config.training
    if kind == "traditional":
        training = training.model_copy(update={"nproc": 1})
    negatives = "uniform" if kind == "traditional" else training.loss.negatives
    train_files = sorted(path for path in examples.files() if "/train/" in path)
    # A table that no feature reads is counted, but nothing is learned in it.
    features = (*config.model.user.features, *config.model.item.features)
    used = {feature.table for feature in features}
    tables = {n: table.embedding() for n, table in config.tables.items() if n in used}
    return TrainJob(
        kind=cast(Literal["two_tower", "traditional"], kind),
        train_files=tuple(lake.abspath(path) for path in train_files),
        corpus_file=lake.abspath(examples.file("items/part-0.parquet")),
        negatives_file=(
            lake.abspath(examples.file(f"negatives/{negatives}.parquet")) if negatives else None
        ),
        table_rows={name: meta["table_rows"][name] for name in tables},
        table_hashes={name: meta["table_hashes"][name] for name in tables},
        num_users=meta["num_users"],
        tables=tables,
        model=config.model,
        training=training,
        checkpoint_dir=str(folder / CHECKPOINTS),
        output_dir=str(folder / "weights"),
        digest=digest_of(
            [
                kind,
                examples.digest,
                config.model,
                training,
                sorted(tables.items()),
                spec.warm_start if kind == "two_tower" else None,
            ]
        ),
        peer_timeout_seconds=config.launch.peer_timeout_seconds,
    )


def _write_bundle(
    spec: RunSpec, role: str, kind: Kind, examples: Published, weights: Path | None, output: Output
) -> None:
    from models.bundle import Vocabulary, write_bundle

    lake = spec.lake()
    published = {table: spec.output("vocabulary", table) for table in spec.config.tables}
    bundle = write_bundle(
        lake.local_path(output.path),
        kind=kind,
        weights_dir=weights,
        corpus_file=lake.abspath(examples.file("items/part-0.parquet")),
        users_file=lake.abspath(examples.file("users/part-0.parquet")),
        vocabularies={
            table: Vocabulary(
                file=lake.abspath(vocabulary.file("part-0.parquet")),
                policy={**vocabulary.manifest.meta, "source": spec.config.tables[table].source},
            )
            for table, vocabulary in published.items()
        },
        info={
            "run_id": spec.run_id,
            "role": role,
            "day": spec.day.isoformat(),
            "examples": examples.digest,
            "code_version": spec.code_version,
            "warm_start": _continued(spec, kind),
        },
    )
    output.meta["parameters"] = bundle.parameters()


def _continued(spec: RunSpec, kind: Kind) -> str | None:
    """Run whose model was continued."""
    if kind != "two_tower" or spec.warm_start is None:
        return None
    return spec.warm_start.run_id


def _follow(launcher: Launcher, folder: Path, shown: Mapping[Path, int], role: str) -> JobStatus:
    """Shows the job's logs as they grow, until the job ends.

    Args:
        launcher: What started the job.
        folder: The job's folder.
        shown: Bytes of each log that are not shown, because they were there before.
        role: What is trained.
    """
    status = JobStatus.RUNNING
    position = dict(shown)
    rest: dict[Path, bytes] = {}
    with progress(f"train {role}", total=1) as ticker:
        while status is JobStatus.RUNNING:
            time.sleep(_POLL_SECONDS)
            status = launcher.status(folder)
            for path in launcher.logs(folder):
                with path.open("rb") as stream:
                    stream.seek(position.get(path, 0))
                    fresh = stream.read()
                position[path] = position.get(path, 0) + len(fresh)
                *lines, rest[path] = (rest.get(path, b"") + fresh).split(b"\n")
                for line in lines:
                    _show(line.decode("utf-8", "replace"), ticker)
    return status


def _show(line: str, ticker: Ticker) -> None:
    """One line of the job's log: progress moves the bar, all else is passed on."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict) or "event" not in event:
        print(line, file=sys.stderr, flush=True)
    elif event["event"] == PROGRESS:
        ticker.set(event["done"], event["total"], event["message"])
    else:
        log(event.pop("event"), **event)


def _failure(
    launcher: Launcher, folder: Path, shown: Mapping[Path, int], role: str
) -> DataError | TrainingError:
    lines = []
    for path in launcher.logs(folder):
        with path.open("rb") as stream:
            stream.seek(shown.get(path, 0))
            lines += stream.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
    where = str(folder)
    if (folder / ERROR).exists():
        cause = json.loads((folder / ERROR).read_text())
        if cause["of_the_input"]:
            return DataError(
                f"the {role} cannot be trained: {cause['what']}",
                where=where,
                fix="correct what is named and run the step again",
            )
        lines = cause["trace"].splitlines()
    return TrainingError(
        f"the training job of the {role} ended without a model; its last lines:\n"
        + "\n".join(f"  | {line}" for line in lines[-_TAIL_LINES:]),
        where=where,
        fix="run the step again: it resumes from the last checkpoint",
    )


@contextmanager
def _cancelled_by_sigterm(launcher: Launcher, folder: Path) -> Iterator[None]:
    """Somebody who stops this step politely means the training, too."""

    def leave(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        launcher.cancel(folder)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
