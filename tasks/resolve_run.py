"""First step of a run: fixes the day, the window and every setting in `run_spec.json`."""

from __future__ import annotations

from datetime import date, timedelta

from tasks import tracking
from tasks.config import PipelineConfig, digest_of
from tasks.errors import ConfigError, NothingToDoError
from tasks.lake import Lake, day_range
from tasks.run_spec import RUN_SPEC, RunSpec, load_run_spec
from tasks.version import code_version
from tasks.warm_start import choose_model

INTERACTIONS = "raw/interactions"


def resolve(config: PipelineConfig, day: date | None = None, *, force: bool = False) -> RunSpec:
    """Resolves a run, or returns the one that was resolved before.

    The same day with the same settings is the same run: it keeps its name, and the steps that
    have finished stay finished.

    Args:
        config: All settings.
        day: Last test day; by default the newest day of the lake.
        force: Start a new run even when this day was run with these settings.

    Raises:
        NothingToDoError: The lake is empty or ends long before the day.
        ConfigError: There is no day to train on.
    """
    spec = draft(config, day, force=force)
    if spec.mlflow_run_id is None:
        parent = tracking.start_parent_run(spec.run_id, spec.day, spec.config)
        spec = spec.model_copy(update={"mlflow_run_id": parent})
        spec.save()
    return spec


def draft(config: PipelineConfig, day: date | None = None, *, force: bool = False) -> RunSpec:
    """The run as it would be resolved; nothing is written, neither in the lake nor in MLflow.

    Args:
        config: All settings.
        day: Last test day; by default the newest day of the lake.
        force: Start a new run even when this day was run with these settings.

    Raises:
        NothingToDoError: The lake is empty or ends long before the day.
        ConfigError: There is no day to train on.
    """
    lake = Lake(config.lake)
    config = config.model_copy(update={"lake": lake.url})
    present = lake.days(INTERACTIONS)
    if not present:
        raise NothingToDoError(
            "the lake holds no interactions",
            where=f"{lake.url}/{INTERACTIONS}",
            fix="bring data in with `tailtower ingest`, or try `tailtower demo-data`",
        )
    day = day or present[-1]
    if (day - present[-1]).days > config.data.max_lag_days:
        raise NothingToDoError(
            f"the lake ends {(day - present[-1]).days} days before {day}",
            where=f"{lake.url}/{INTERACTIONS}, newest partition {present[-1]}",
            fix="deliver newer data, choose an older day, or raise data.max_lag_days",
        )
    train_days, test_days = _split(config, day, present)
    if not train_days:
        first = config.data.first_day or present[0]
        earliest = first + timedelta(days=config.data.test_days)
        raise ConfigError(
            f"there is no day to train on before {test_days[0]}",
            where=f"day {day}, first day of the lake {first}",
            fix=f"choose {earliest} or a later day",
        )
    run_id = _run_id(lake, config, day, train_days, test_days, force=force)
    path = f"runs/{run_id}/{RUN_SPEC}"
    if lake.exists(path):
        return load_run_spec(f"{lake.url}/{path}")
    champion = tracking.current_champion(config)
    return RunSpec(
        run_id=run_id,
        day=day,
        train_days=train_days,
        test_days=test_days,
        config=config,
        champion=champion,
        warm_start=choose_model(config, lake, train_days, test_days, champion),
        code_version=code_version(),
    )


def _split(
    config: PipelineConfig, day: date, present: list[date]
) -> tuple[tuple[date, ...], tuple[date, ...]]:
    """The window's training days and the test days after them.

    With a split that the data brings, both are all days of the window.
    """
    data = config.data
    first = data.first_day or present[0]
    if data.split is None:
        first_test = day - timedelta(days=data.test_days - 1)
        first_train = max(first, first_test - timedelta(days=data.window_days))
        train = day_range(first_train, first_test - timedelta(days=1))
        test = day_range(first_test, day)
    else:
        train = test = day_range(max(first, day - timedelta(days=data.window_days - 1)), day)
    if data.allow_gaps:
        # The run's own day is always waited for: a gap there would be a run about nothing.
        train = [d for d in train if d in present]
        test = [d for d in test if d in present or d == day]
    return tuple(train), tuple(test)


def _run_id(
    lake: Lake,
    config: PipelineConfig,
    day: date,
    train_days: tuple[date, ...],
    test_days: tuple[date, ...],
    *,
    force: bool,
) -> str:
    digest = digest_of([config.digest(), day, train_days, test_days])[:8]
    run_id = f"{day}-{digest}"
    if not force:
        return run_id
    taken = set(lake.list_folders("runs"))
    attempt = 2
    while f"{run_id}-{attempt}" in taken:
        attempt += 1
    return f"{run_id}-{attempt}" if run_id in taken else run_id
