"""A public data set through the product: raw lake, data steps, training, test users.

The model and the training are those of `conf/quality.yaml`, whatever the data set; only where
the data lies, how it is split and whether it has times differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import torch
import yaml
from torch import Tensor

from benchmarks.rating_logs import RatingLog
from benchmarks.silent import Silent
from models.batch import UserInputs
from models.bundle import Recommender
from models.config import ModelSettings, PriorSettings, TrainJob
from models.corpus import Corpus
from models.distributed_training import DistributedTraining
from models.encoder import Encoder
from models.jagged import Jagged
from models.prior import with_constant, with_prior
from models.retrieval import top_k
from models.stopping import StopRequest
from models.traditional import TraditionalTraining
from models.trainer import training_environment
from models.weights import compute_item_vectors
from tasks.config import PipelineConfig
from tasks.evaluate import test_set
from tasks.evaluation.measurement import TestSet, measure
from tasks.evaluation.per_user import aggregates
from tasks.resolve_run import resolve
from tasks.run_spec import RunSpec
from tasks.serving.bundles import bundle_folder, trained_model
from tasks.steps import execute
from tasks.train import Kind, job_of

RECIPE = Path(__file__).parents[1] / "conf" / "quality.yaml"
DATA_STEPS = ("await_partition", "validate", "count", "vocabulary", "examples")
K = 20
_USER_BLOCK = 2048


def write_log(lake: Path, log: RatingLog) -> None:
    """Writes a data set's raw days, once."""
    days = log.events.with_columns(day=pl.col("timestamp").dt.date().cast(pl.String))
    for events in days.partition_by("day"):
        folder = lake / "raw" / "interactions" / f"dt={events['day'][0]}"
        _write_day(folder, events.drop("day"))
    if log.items is not None:
        _write_day(lake / "raw" / "items" / f"dt={min(days['day'])}", log.items)


def _write_day(folder: Path, rows: pl.DataFrame) -> None:
    if (folder / "_SUCCESS").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()


def prepare(lake: Path, log: RatingLog, changes: Mapping[str, Any]) -> RunSpec:
    """A run over a data set whose examples are made.

    Args:
        lake: Folder of the lake.
        log: The data set.
        changes: Settings that differ from the recipe, by dotted keys such as `training.seed`.
    """
    write_log(lake, log)
    body = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    body |= {"lake": str(lake), "tracking": {"uri": f"sqlite:///{lake}/mlflow.db"}}
    body["data"]["history"] = "past" if log.timed else "others"
    for name, kind in log.attributes.items():
        vocabulary = {"min_count": 2}
        body["tables"][name] = {"source": f"items.{name}", "vocabulary": vocabulary}
        feature = {"name": name, "table": name, "kind": kind}
        body["model"]["item"]["features"].append(feature)
    for key, value in changes.items():
        *sections, name = key.split(".")
        place = body
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    spec = resolve(PipelineConfig.model_validate(body))
    for step in DATA_STEPS:
        execute(spec, step)
    return spec


def changes_of(settings: Sequence[str]) -> dict[str, Any]:
    """Settings given as `key=value` on the command line."""
    pairs = [setting.partition("=") for setting in settings]
    return {key: yaml.safe_load(value) for key, _, value in pairs}


@dataclass(frozen=True)
class TestUsers:
    """The test users of a run, known ones only, as the published protocols have it.

    Attributes:
        rows: Rows of the test examples, with the targets that count.
        items: The corpus.
        candidates: Items that are ranked: the first so many of the corpus.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    rows: pa.Table
    items: pa.Table
    candidates: int

    @classmethod
    def of(cls, spec: RunSpec, new_items: bool = False) -> TestUsers:
        """The test users of a run whose examples are made.

        Args:
            spec: The run.
            new_items: Whether items without a train interaction are ranked, and are targets.
        """
        lake, examples = spec.lake(), spec.output("examples", "examples")
        items = lake.read_table(examples.file("items/part-0.parquet"))
        # The corpus is ordered by count: items without any are the last ones.
        candidates = (
            len(items) if new_items else pc.sum(pc.greater(items["train_count"], 0)).as_py()
        )
        rows = lake.read_table(examples.file("test/part-0.parquet"))
        rows = rows.filter(pc.greater_equal(rows["user"], 0))
        targets = pl.Series(rows["targets"].combine_chunks())
        kept = targets.list.eval(pl.element().filter(pl.element() < candidates))
        place = rows.column_names.index("targets")
        column = pa.array(kept.to_arrow()).cast(pa.list_(pa.int32()))
        rows = rows.set_column(place, "targets", column)
        return cls(rows.filter(pc.greater(pc.list_value_length(column), 0)), items, candidates)

    def sample(self, count: int | None) -> TestUsers:
        """So many of them, the same ones for every model of a data set; None for all."""
        if count is None or count >= len(self.rows):
            return self
        chosen = np.random.default_rng(0).permutation(len(self.rows))[:count]
        return replace(self, rows=self.rows.take(np.sort(chosen)))

    @cached_property
    def tests(self) -> TestSet:
        """What is measured on."""
        return test_set(self.rows, self.items)

    def metrics(self, best: Tensor) -> dict[str, float]:
        """Recall and NDCG of recommendations int64 `[U, 20]`, over all and by slice of items."""
        found = aggregates(measure("model", best, self.tests, (K,)))
        return {name: value for name, value in found.items() if not name.startswith("mrr")}

    def best(self, users: Tensor, items: Tensor, seen: Jagged | None) -> Tensor:
        """The best candidates of users, by the vectors of both."""
        return top_k(users, items[: self.candidates], K, seen)[0]

    def seen_by_all(self, spec: RunSpec) -> tuple[Jagged, Tensor]:
        """Train items of every train user, and where the test users are among them."""
        examples = spec.output("examples", "examples")
        users = spec.lake().read_table(examples.file("users/part-0.parquet"), ["seen"])
        return Jagged.from_arrow(users["seen"]), torch.tensor(self.rows["user"].to_numpy())


def published(spec: RunSpec, role: str = "candidate") -> Recommender:
    """Trains a model of a run by the product's step, and opens what it published."""
    execute(spec, "train", role)
    return Recommender.load(bundle_folder(spec.lake(), trained_model(spec, role)))


def measured(spec: RunSpec, role: str = "candidate", new_items: bool = False) -> dict[str, float]:
    """Trains a model of a run, and measures what was published."""
    recommender = published(spec, role)
    found: dict[str, float] = {}
    for every in (False, True) if new_items else (False,):
        test = TestUsers.of(spec, new_items=every)
        inputs = recommender.inputs(test.rows)
        vectors = recommender.user_vectors(inputs)
        metrics = test.metrics(test.best(vectors, recommender.item_vectors, inputs.seen))
        found |= {f"{name} (all items)" if every else name: v for name, v in metrics.items()}
    return found


class Observed:
    """A training in this process, measured at fixed points.

    Args:
        spec: A run whose examples are made.
        kind: Which trainer.
        folder: Where the training may write.
        users: Test users that are measured; None for all.
        strengths: Strengths of the prior; each point is measured with all of them, and the
            best recall counts. None for that of the recipe.
        corpus_file: A corpus that takes the place of the run's own.
    """

    def __init__(
        self,
        spec: RunSpec,
        kind: Kind,
        folder: Path,
        *,
        users: int | None = None,
        strengths: Sequence[float] | None = None,
        corpus_file: Path | None = None,
    ) -> None:
        self._test = TestUsers.of(spec).sample(users)
        self._strengths = strengths
        job: TrainJob = job_of(spec, kind, spec.output("examples", "examples"), folder)
        if corpus_file is not None:
            job = job.model_copy(update={"corpus_file": str(corpus_file)})
        self._job = job
        self._corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
        self.seconds = 0.0
        """Time of the training alone."""
        self.cpu_seconds = 0.0
        """Processor time of the training alone, of all its threads."""

    def run(self, points_per_epoch: float = 1) -> Iterator[tuple[float, float, dict[str, float]]]:
        """Epochs done, seconds of training and metrics, at each point.

        Args:
            points_per_epoch: Points in an epoch; one over the number of epochs for the end alone.
        """
        device = torch.device("cpu")
        with _training(self._job), StopRequest() as stop:
            trainer = (
                TraditionalTraining if self._job.kind == "traditional" else DistributedTraining
            )
            training = trainer(self._job, Silent(), device)
            epoch = training.steps_per_epoch
            total = epoch * self._job.training.epochs
            done = 0
            for point in range(1, round(points_per_epoch * self._job.training.epochs) + 1):
                until = min(total, round(point * epoch / points_per_epoch))
                began, cpu = time.perf_counter(), time.process_time()
                training.fit(stop, done, until - done)
                self.seconds += time.perf_counter() - began
                self.cpu_seconds += time.process_time() - cpu
                done = until
                yield done / epoch, self.seconds, self._measure(training)

    @torch.no_grad()
    def _measure(self, training: DistributedTraining | TraditionalTraining) -> dict[str, float]:
        trained, towers, tables = training.model()
        tables = {name: weight.float() for name, weight in tables.items()}
        encoder = Encoder(trained.model, self._corpus, trained.table_hashes)
        users = UserInputs.from_arrow(self._test.rows, trained.model)
        blocks = [
            towers.user_vectors(tables, encoder.user_codes(users.slice(first, first + _USER_BLOCK)))
            for first in range(0, len(users), _USER_BLOCK)
        ]
        items = compute_item_vectors(towers, tables, encoder, len(self._corpus))
        found = []
        for model in _with_strengths(trained.model, self._strengths):
            vectors = with_constant(torch.cat(blocks), model)
            best = self._test.best(vectors, with_prior(items, self._corpus, model), users.seen)
            found.append(self._test.metrics(best))
        return max(found, key=lambda metrics: metrics[f"recall_at_{K}"])


def _with_strengths(model: ModelSettings, strengths: Sequence[float] | None) -> list[ModelSettings]:
    if strengths is None:
        return [model]
    prior = model.prior or PriorSettings()
    return [
        model.model_copy(update={"prior": prior.model_copy(update={"strength": strength})})
        for strength in strengths
    ]


@contextmanager
def _training(job: TrainJob) -> Iterator[None]:
    torch.set_num_threads(job.training.threads or 1)
    with training_environment(torch.device("cpu")):
        yield


def over_seeds(values: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation (of the sample) of each metric over seeds."""
    table = {name: np.array([value[name] for value in values]) for name in values[0]}
    return {
        name: {
            "mean": round(float(numbers.mean()), 5),
            "sd": round(float(numbers.std(ddof=1)), 5) if len(numbers) > 1 else 0.0,
        }
        for name, numbers in table.items()
    }


def say(line: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
