"""The log and the run of the examples benchmark."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from tasks.config import PipelineConfig, digest_of
from tasks.run_spec import RunSpec
from tasks.steps import execute

FIRST_DAY = date(2026, 1, 1)
TRAIN_DAYS = 7
_DAYS = TRAIN_DAYS + 1
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class LogShape:
    """What decides the bytes of the log."""

    events: int = 8_000_000
    """Of the seven training days and the test day."""
    users: int = 1_000_000
    items: int = 200_000
    exponent: float = 1.05
    seed: int = 1

    @property
    def name(self) -> str:
        """Name of the log's lake, different for every shape."""
        return f"examples-{self.events}-{digest_of(asdict(self))[:8]}"

    @property
    def train_events(self) -> int:
        """Events of the training days."""
        return self.events // _DAYS * TRAIN_DAYS


def make_lake(lake: Path, shape: LogShape) -> None:
    """Writes eight days of events, no two at the same time: every tool orders them alike."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.synthetic_events import hashed, zipf_ranks

    for number in range(_DAYS):
        day = FIRST_DAY + timedelta(days=number)
        folder = lake / "raw" / "interactions" / f"dt={day}"
        if (folder / "_SUCCESS").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([shape.seed, number])
        rows = shape.events // _DAYS
        start = int(datetime.combine(day, datetime.min.time(), UTC).timestamp()) * 1_000_000
        times = start + np.arange(rows, dtype=np.int64) * (_DAY_US // rows)
        users = zipf_ranks(rng, rows, shape.users, shape.exponent)
        items = zipf_ranks(rng, rows, shape.items, shape.exponent)
        table = pa.table(
            {
                "user_id": hashed(users, 0),
                "item_id": hashed(items, 1 << 32),
                "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
            }
        )
        half = rows // 2
        pq.write_table(table.slice(0, half), folder / "part-0.parquet")
        pq.write_table(table.slice(half), folder / "part-1.parquet")
        (folder / "_SUCCESS").touch()


def make_run(lake: Path, history: int) -> RunSpec:
    """A run on the lake whose vocabularies are made, saved in the lake."""
    vocabulary = {"min_count": 10, "tail_buckets": 1024}
    past = {"name": "history", "table": "item", "kind": "history", "max_length": history}
    config = PipelineConfig.model_validate(
        {
            "name": "benchmark",
            "lake": str(lake),
            "data": {"window_days": TRAIN_DAYS, "validation": "off"},
            "tables": {
                "user": {"source": "interactions.user_id", "vocabulary": vocabulary},
                "item": {"source": "interactions.item_id", "vocabulary": vocabulary},
            },
            "model": {
                "user": {"features": [{"name": "uid", "table": "user"}, past]},
                "item": {"features": [{"name": "iid", "table": "item"}]},
            },
        }
    )
    days = tuple(FIRST_DAY + timedelta(days=n) for n in range(_DAYS))
    spec = RunSpec(
        run_id="benchmark",
        day=days[-1],
        train_days=days[:-1],
        test_days=days[-1:],
        config=config,
        code_version="benchmark",
    )
    spec.save()
    for step in ("await_partition", "validate", "count", "vocabulary"):
        execute(spec, step)
    return spec


def rival_job(lake: Path, spec: RunSpec, shape: LogShape) -> dict[str, Any]:
    """What `polars_examples.Job` needs, as JSON can say it; `out` is left to the caller."""
    from tasks.longtail.example_shards import shards_for
    from tasks.longtail.vocabulary_table import FILE

    def files(days: tuple[date, ...]) -> list[str]:
        folders = [lake / "raw" / "interactions" / f"dt={day}" for day in days]
        return [str(path) for folder in folders for path in sorted(folder.glob("*.parquet"))]

    vocabularies = {}
    for name in spec.config.tables:
        published = spec.output("vocabulary", name)
        path = spec.lake().local_path(published.file(FILE))
        vocabularies[name] = [str(path), published.manifest.meta["tail_buckets"]]
    return {
        "train": files(spec.train_days),
        "test": files(spec.test_days),
        "vocabularies": vocabularies,
        "history": spec.config.history_length,
        "shards": shards_for(shape.train_events),
        "seed": spec.config.training.seed,
        "bucket_seed": spec.config.tables["user"].vocabulary.seed,
    }
