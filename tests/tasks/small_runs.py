"""Runs of a tiny pipeline: real data steps on a made-up lake, weights that were never trained.

Everything after the training is the product's own code on real files, so tests of evaluate,
compare, gate, publish and recommend see what a daily run would show them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from models.numeric_features import NumericStatistics
from models.optimizer_state import STATE_FOLDER, write_state
from models.weights import TrainedModel, write_weights
from tasks import train
from tasks.config import PipelineConfig
from tasks.lake import Published
from tasks.resolve_run import resolve
from tasks.run_spec import RunSpec, StepResult
from tasks.steps import execute

FIRST_DAY = date(2026, 1, 1)
ANYTHING_PASSES: dict[str, Any] = {
    "gate__against": ["champion"],
    "gate__margin": -1.0,
    "gate__min_tail_ratio": 0.0,
    "gate__min_coverage_ratio": 0.0,
}
"""Settings of a gate that lets random weights through."""
DATA_STEPS = ("await_partition", "validate", "count", "vocabulary", "examples")


def make_config(lake: Path, uri: str, **changes: Any) -> PipelineConfig:
    """IDs, a history and two user attributes; popularity as the only baseline."""
    body: dict[str, Any] = {
        "name": "tiny",
        "lake": str(lake),
        "tracking": {"uri": uri, "model_name": "tiny"},
        "data": {"validation": "off"},
        "tables": {
            "user": {
                "source": "interactions.user_id",
                "dim": 8,
                "vocabulary": {"min_count": 6, "tail_buckets": 4},
            },
            "item": {
                "source": "interactions.item_id",
                "dim": 8,
                "vocabulary": {"min_count": 6, "tail_buckets": 8, "hashes": 2},
            },
            "country": {"source": "users.country", "dim": 4, "vocabulary": {"min_count": 1}},
            "interest": {
                "source": "users.interests",
                "dim": 4,
                "vocabulary": {"min_count": 3, "tail_buckets": 2},
            },
        },
        "model": {
            "dim": 8,
            "user": {
                "features": [
                    {"name": "uid", "table": "user"},
                    {"name": "history", "table": "item", "kind": "history", "max_length": 5},
                    {"name": "country", "table": "country"},
                    {"name": "interests", "table": "interest", "kind": "list"},
                ],
                "hidden": [],
            },
            "item": {"features": [{"name": "iid", "table": "item"}], "hidden": []},
        },
        "baselines": ["popularity"],
        "evaluation": {"k": [3, 5], "bootstrap_samples": 200},
        "gate": {"metric": "recall_at_5"},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            body.setdefault(section, {})[name] = value
        else:
            body[section] = value
    return PipelineConfig.model_validate(body)


def write_raw_days(lake: Path, days: int, *, users: int = 30, items: int = 40) -> None:
    """Interactions of some days, and titles: the later the day, the higher the new IDs."""
    for number in range(days):
        day = FIRST_DAY + timedelta(days=number)
        rng = np.random.default_rng(number)
        count = 150
        user = rng.integers(0, users + 3 * number, count)
        item = np.minimum(rng.geometric(0.08, count) - 1, items + 3 * number - 1)
        # The newest items are taken on their first day, so that corpora differ by day.
        item[:3] = items + 3 * number - np.arange(1, 4)
        start = datetime.combine(day, datetime.min.time(), UTC)
        stamps = [start + timedelta(seconds=int(s)) for s in np.sort(rng.integers(0, 86400, count))]
        folder = lake / f"raw/interactions/dt={day}"
        folder.mkdir(parents=True)
        table = pa.table(
            {
                "user_id": [f"u{u:02d}" for u in user],
                "item_id": [f"i{i:02d}" for i in item],
                "timestamp": pa.array(stamps, pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()
    _write_users(lake, days, users)
    folder = lake / f"raw/items/dt={FIRST_DAY}"
    folder.mkdir(parents=True)
    ids = [f"i{i:02d}" for i in range(items)]
    pq.write_table(
        pa.table({"item_id": ids, "title": [f"Title {i}" for i in ids]}), folder / "part-0.parquet"
    )
    (folder / "_SUCCESS").touch()


def _write_users(lake: Path, days: int, users: int) -> None:
    """Attributes of most users from the day they appear; some have none, some change theirs."""
    for number in range(days):
        day = FIRST_DAY + timedelta(days=number)
        known = range(users) if number == 0 else range(users + 3 * number - 3, users + 3 * number)
        rows = [
            {
                "user_id": f"u{u:02d}",
                "country": None if u % 5 == 0 else "abc"[u % 3],
                "interests": None if u % 7 == 0 else [f"t{u % 4}", f"t{u % 6}"],
            }
            for u in (*known, number + 1)
            if u % 11 or number == 0
        ]
        schema = pa.schema(
            [
                ("user_id", pa.string()),
                ("country", pa.string()),
                ("interests", pa.list_(pa.string())),
            ]
        )
        for row in rows[-1:]:
            row["country"] = "abc"[number % 3]
        folder = lake / f"raw/users/dt={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()


def run_data_steps(config: PipelineConfig, day: date, *, force: bool = False) -> RunSpec:
    """A resolved run whose examples are made."""
    spec = resolve(config, day, force=force)
    for step in DATA_STEPS:
        execute(spec, step)
    return spec


def fake_training(spec: RunSpec, *, seed: int) -> None:
    """Publishes the candidate and the baseline, with random weights from a seed."""

    def weights(
        _spec: RunSpec, role: str, kind: str, examples: Published, _child: str
    ) -> tuple[Path, None]:
        folder = spec.lake().local_path(f"checkpoints/{spec.run_id}/{role}/weights")
        meta = examples.manifest.meta
        trained = TrainedModel(
            kind="two_tower",
            model=spec.config.model,
            tables={name: table.embedding() for name, table in spec.config.tables.items()},
            table_rows=meta["table_rows"],
            table_hashes=meta["table_hashes"],
            num_users=meta["num_users"],
            digest=f"{examples.digest}-{seed}",
            numeric={
                side: {
                    f.name: NumericStatistics(mean=30.0, std=10.0, missing=0, rows=1)
                    for f in tower.numeric
                }
                for side, tower in (
                    ("user", spec.config.model.user),
                    ("item", spec.config.model.item),
                )
            },
        )
        generator = torch.Generator().manual_seed(seed)
        tables = []
        for name, settings in trained.tables.items():
            weight = torch.randn(trained.table_rows[name], settings.dim, generator=generator)
            weight[0] = 0
            tables.append((name, weight))
        write_weights(folder, trained, trained.towers(seed).state_dict(), tables)
        write_state(folder / STATE_FOLDER, spec.config.training.optimizer, {}, [])
        return folder, None

    original = train._train
    train._train = weights  # type: ignore[assignment]
    try:
        for role in spec.config.roles:
            execute(spec, "train", role)
    finally:
        train._train = original


def run_steps(spec: RunSpec, *names: str) -> dict[str, StepResult]:
    """Runs steps the way every orchestrator does."""
    return {name: execute(spec, name) for name in names}


def rerun(spec: RunSpec, name: str) -> StepResult:
    """Runs a step again as if its result file had been lost."""
    result: StepResult = importlib.import_module(f"tasks.{name}").run(spec)
    return result


@dataclass(frozen=True)
class TwoDays:
    """Two finished days of a tiny pipeline.

    The first day's model was promoted without a champion, the second day's against it.
    """

    config: PipelineConfig
    first: RunSpec
    second: RunSpec


def make_two_days(lake: Path, uri: str) -> TwoDays:
    """Runs two days to their end."""
    write_raw_days(lake, 5)
    config = make_config(lake, uri, **ANYTHING_PASSES)
    specs = []
    for seed, day in enumerate((date(2026, 1, 3), date(2026, 1, 4))):
        spec = run_data_steps(config, day)
        fake_training(spec, seed=seed)
        run_steps(spec, "evaluate", "compare", "gate", "approve", "publish")
        specs.append(spec)
    return TwoDays(config, *specs)
