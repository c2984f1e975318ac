"""Which earlier model a run continues from, and how its rows become today's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.config import WarmStart
from tasks.config import PipelineConfig
from tasks.errors import ConfigError, LakeError, UpstreamError
from tasks.lake import Lake, Output, Published
from tasks.progress import log
from tasks.run_spec import RUN_SPEC, EarlierRun, ModelReference, RunSpec, load_run_spec

if TYPE_CHECKING:
    from models.bundle import Bundle
    from tasks.longtail.vocabulary_table import Vocabulary

STATE = "optimizer_state"
"""Name of the optimizer state among the outputs of the step `train`."""


def choose_model(
    config: PipelineConfig,
    lake: Lake,
    train_days: tuple[date, ...],
    test_days: tuple[date, ...],
    champion: ModelReference | None,
) -> EarlierRun | None:
    """The model that a run continues from, fixed when the run is resolved.

    A model that has seen a test day of the run would know the answers; it is never continued.

    Args:
        config: All settings.
        lake: The lake.
        train_days: Days that the run trains on.
        test_days: Days that it tests on.
        champion: The model that is served.
    """
    settings = config.training.warm_start
    if settings.model == "none":
        return None
    found = []
    if settings.model == "champion":
        found = [] if champion is None else [_of_champion(config, lake, champion)]
    else:
        found = list(_candidates(lake, config.name, test_days[-1]))
    if not found:
        log("warm_start.none", reason=f"there is no {settings.model} yet")
        return None
    usable = [model for model in found if model.trained_until < test_days[0]]
    if not usable:
        log("warm_start.none", reason=f"the {settings.model} has seen a test day of this run")
        return None
    newest = max(usable, key=lambda model: (model.trained_until, model.day, model.run_id))
    if settings.examples == "new" and newest.trained_until >= train_days[-1]:
        log("warm_start.none", reason=f"{newest.run_id} has seen all days of this run")
        return None
    return newest


def _of_champion(config: PipelineConfig, lake: Lake, champion: ModelReference) -> EarlierRun:
    path = f"runs/{champion.run_id}/{RUN_SPEC}"
    if lake.exists(path):
        trained_until = load_run_spec(f"{lake.url}/{path}").train_days[-1]
    else:
        # Of another lake: its last test day is known, the rest is as here.
        trained_until = champion.day - timedelta(days=config.data.test_days)
    return EarlierRun(
        run_id=champion.run_id,
        day=champion.day,
        trained_until=trained_until,
        bundle=champion.bundle,
        version=champion.version,
    )


def _candidates(lake: Lake, pipeline: str, day: date) -> Iterator[EarlierRun]:
    """Candidates of runs of earlier days that were trained to their end."""
    for run_id in lake.list_folders("runs"):
        path = f"runs/{run_id}/{RUN_SPEC}"
        if not lake.exists(path):
            continue
        try:
            spec = load_run_spec(f"{lake.url}/{path}")
        except ConfigError:  # of another version of the product
            continue
        if spec.config.name != pipeline or spec.day >= day:
            continue
        trained = spec.result("train.candidate")
        if trained is not None and lake.find(trained.outputs["model"]) is not None:
            yield EarlierRun(
                run_id=run_id,
                day=spec.day,
                trained_until=spec.train_days[-1],
                bundle=trained.outputs["model"],
            )


def since_us(spec: RunSpec) -> int | None:
    """Start of the first day that the earlier model has not seen, when only those are read."""
    if spec.warm_start is None or spec.config.training.warm_start.examples == "window":
        return None
    first = spec.warm_start.trained_until + timedelta(days=1)
    return int(datetime.combine(first, datetime.min.time(), UTC).timestamp()) * 1_000_000


@contextmanager
def earlier_bundle(spec: RunSpec) -> Iterator[Path | None]:
    """Local folder of the earlier model's bundle, for reading inside the block.

    Raises:
        UpstreamError: It is gone.
    """
    from tasks.serving.bundles import bundle_folder, champion_folder

    start = spec.warm_start
    if start is None:
        yield None
        return
    published = spec.lake().find(start.bundle)
    if published is not None:
        yield bundle_folder(spec.lake(), published)
    elif start.version is not None:
        reference = ModelReference(
            version=start.version, run_id=start.run_id, day=start.day, bundle=start.bundle
        )
        with champion_folder(spec, reference) as folder:
            yield folder
    else:
        raise UpstreamError(
            f"the model of run {start.run_id}, which this run continues from, is gone",
            where=f"{spec.lake().url}/{start.bundle}",
            fix="resolve the day again with --force",
        )


def prepare(spec: RunSpec, bundle: Path, target: Path) -> tuple[WarmStart, dict[str, Any]]:
    """Compares both vocabularies of every table and writes where each row comes from.

    Args:
        spec: The run.
        bundle: Local folder of the earlier model's bundle.
        target: Local folder for the files.

    Returns:
        What the training job is told, and what there is to say about it.

    Raises:
        ConfigError: A table or the towers changed in a way that cannot be continued, and are not
            to start anew.
    """
    import pyarrow.parquet as pq

    from models.bundle import read_bundle
    from tasks.longtail.row_moves import row_moves
    from tasks.longtail.vocabulary_table import read_vocabulary

    assert spec.warm_start is not None
    earlier = read_bundle(bundle)
    settings = spec.config.training.warm_start
    _refuse_changes(spec, bundle, earlier)
    target.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    facts: dict[str, str | dict[str, int]] = {}
    fresh: list[str] = []
    for name in spec.config.tables:
        if name not in earlier.policies:
            facts[name] = "new"
        elif name in settings.reinitialise:
            facts[name] = "starts anew"
            fresh.append(name)
        else:
            new = read_vocabulary(spec.lake(), spec.output("vocabulary", name))
            old = _vocabulary_of(bundle, earlier, name)
            health = earlier.policies[name].get("health", {})
            events = float(health.get("bucket_events", {}).get("mean", 0.0))
            moves, moved = row_moves(old, new, events)
            files[name] = str(target / f"{name}.parquet")
            pq.write_table(moves, files[name], compression="zstd")
            facts[name] = moved.numbers()
    state = _state_folder(spec)
    start = WarmStart(
        bundle=str(bundle),
        state=None if state is None else str(state),
        moves=files,
        fresh_tables=tuple(fresh),
        fresh_towers=settings.reinitialise_towers,
    )
    return start, {
        "run_id": spec.warm_start.run_id,
        "day": spec.warm_start.day.isoformat(),
        "trained_until": spec.warm_start.trained_until.isoformat(),
        "optimizer_state": state is not None,
        "towers": "start anew" if settings.reinitialise_towers else "continue",
        "tables": facts,
        "removed": sorted(set(earlier.policies) - set(spec.config.tables)),
    }


def _refuse_changes(spec: RunSpec, bundle: Path, earlier: Bundle) -> None:
    """Refuses everything that cannot be continued at once, in one message."""
    from models.warm_start import differences

    trained = earlier.trained
    if trained is None or trained.kind != "two_tower":
        raise ConfigError(
            f"the model of run {earlier.info.get('run_id')} has no towers to continue from",
            where="training.warm_start.model",
            fix="set it to `none`",
        )
    config, settings = spec.config, spec.config.training.warm_start
    unknown = sorted(set(settings.reinitialise) - set(config.tables))
    if unknown:
        raise ConfigError(
            f"there is no table '{unknown[0]}' (tables: {', '.join(sorted(config.tables))})",
            where="training.warm_start.reinitialise",
            fix="name tables of this pipeline",
        )
    tables = {name: table.embedding() for name, table in config.tables.items()}
    reasons, towers = differences(trained, config.model, tables)
    for name in config.tables:
        before = earlier.policies.get(name)
        if before is None:
            continue
        now = spec.output("vocabulary", name).manifest.meta
        changed = [
            f"vocabulary.{key} was {before.get(key)} and is {now.get(key)}"
            for key in ("hash", "seed", "hashes")
            if before.get(key) != now.get(key)
        ]
        source = config.tables[name].source
        if before.get("source") != source:
            changed.append(f"source was {before.get('source')} and is {source}")
        if changed or not _same_ids(spec, bundle, name):
            reasons.setdefault(name, []).extend(changed or ["its IDs have another type"])
    blocked = {n: why for n, why in reasons.items() if n not in settings.reinitialise}
    lines = [f"table {name}: {', '.join(why)}" for name, why in sorted(blocked.items())]
    fixes = []
    if blocked:
        names = sorted({*blocked, *settings.reinitialise})
        fixes.append(f"training.warm_start.reinitialise: [{', '.join(names)}]")
    if towers and not settings.reinitialise_towers:
        lines.append(f"towers: {', '.join(towers)}")
        fixes.append("training.warm_start.reinitialise_towers: true")
    if lines:
        raise ConfigError(
            f"the model of run {earlier.info.get('run_id')} cannot be continued: "
            + "; ".join(lines),
            where="training.warm_start",
            fix=f"restore these settings, or start anew with {' and '.join(fixes)}",
        )


def _same_ids(spec: RunSpec, bundle: Path, table: str) -> bool:
    import pyarrow.parquet as pq

    lake = spec.lake()
    with lake.open_input(spec.output("vocabulary", table).file("part-0.parquet")) as stream:
        now = pq.read_schema(stream).field("id").type
    file = pq.read_metadata(bundle / "vocabulary" / f"{table}.parquet")
    before = file.schema.to_arrow_schema().field("id").type
    return bool(file.num_rows == 0 or now == before)


def _vocabulary_of(bundle: Path, earlier: Bundle, table: str) -> Vocabulary:
    import pyarrow.parquet as pq

    from tasks.config import VocabularySettings
    from tasks.longtail.columns import from_arrow
    from tasks.longtail.vocabulary_table import Vocabulary

    policy = VocabularySettings.model_validate(earlier.policies[table]["policy"])
    rows = pq.ParquetFile(bundle / "vocabulary" / f"{table}.parquet").read()
    return Vocabulary(policy, from_arrow(rows))


def _state_folder(spec: RunSpec) -> Path | None:
    """Local folder of the earlier model's optimizer state, where this lake has it."""
    assert spec.warm_start is not None
    found = spec.lake().find(state_path(spec.warm_start.run_id, "candidate"))
    if found is None:
        log("warm_start.without_state", run_id=spec.warm_start.run_id)
        return None
    return spec.lake().local_path(found.file("state.json")).parent


def state_path(run_id: str, role: str) -> str:
    """Lake path of the optimizer state of a run's model."""
    return f"optimizer_states/{run_id}/{role}"


def publish_state(spec: RunSpec, role: str, weights: Path) -> Published:
    """Publishes the optimizer state that a training left beside its weights."""
    import shutil

    from models.optimizer_state import STATE_FOLDER, read_state_file

    lake = spec.lake()
    source = weights / STATE_FOLDER
    content = read_state_file(source)

    def write(output: Output) -> None:
        try:
            shutil.copytree(source, lake.local_path(output.path), dirs_exist_ok=True)
        except OSError as error:
            raise LakeError(
                f"the optimizer state cannot be copied: {error}",
                where=str(source),
                fix="free space on the lake and run the step again",
            ) from error
        output.meta["bytes"] = content.bytes

    path = state_path(spec.run_id, role)
    return lake.publish(path, write, dataset="optimizer_states", day=spec.day)
