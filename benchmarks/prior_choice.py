"""Which prior fits a data set with times: chosen on held-out rows, after one training.

The losses do not know of the prior, so one trained model is measured with all of them. It learns
from the first train rows and is measured on the last ones; the test rows are not read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from benchmarks import classical
from benchmarks.quality_run import K, TestUsers, prepare, published, say
from benchmarks.rating_logs import RatingLog
from models.config import PriorSettings
from models.corpus import Corpus
from models.prior import with_constant, with_prior

HELD_OUT = 0.1
HALF_LIVES = (2.0, 4.0, 7.0, 14.0, 28.0, 60.0, None)
STRENGTHS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0)
TRENDS = (0.0, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Choice:
    """What held-out rows say.

    Attributes:
        prior: The prior with the highest product of recall and NDCG.
        half_life_days: Half-life of the popularity that is best by itself, likewise.
        metrics: Metrics of the model with that prior on the held-out rows.
        popularity: Recall and NDCG of popularity by itself there, by half-life.
    """

    prior: PriorSettings
    half_life_days: float | None
    metrics: dict[str, float]
    popularity: dict[float | None, tuple[float, float]]


def choose_prior(folder: Path, log: RatingLog) -> Choice:
    """Trains once on a data set's first train rows and measures every prior on its last ones.

    Args:
        folder: Where the lake is made.
        log: The data set; it has times.
    """
    held = log.held_out(HELD_OUT, seed=0)
    spec = prepare(folder, held, {"training.seed": 1})
    recommender = published(spec)
    test = TestUsers.of(spec)
    inputs = recommender.inputs(test.rows)
    # Without the coordinate of the recipe's own prior.
    users, items = recommender.user_vectors(inputs)[:, :-1], recommender.item_vectors[:, :-1]
    counts = torch.tensor(test.items["train_count"].to_numpy())
    ids = pl.Series(test.items["item_id"].combine_chunks())
    seen, rows = test.seen_by_all(spec)
    train = classical.matrix_of(seen, test.candidates)[rows.numpy()]
    found: dict[PriorSettings, dict[str, float]] = {}
    alone: dict[float | None, dict[str, float]] = {}
    for half_life in HALF_LIVES:
        recent = recent_counts(held, half_life, ids)
        best = classical.by_weight(recent[: test.candidates], train, K)
        alone[half_life] = test.metrics(best)
        corpus = Corpus(counts, {}, torch.from_numpy(recent))
        for strength, trend in itertools.product(STRENGTHS, TRENDS if half_life else (0.0,)):
            prior = PriorSettings(strength=strength, trend=trend, half_life_days=half_life)
            model = spec.config.model.model_copy(update={"prior": prior})
            best = test.best(
                with_constant(users, model), with_prior(items, corpus, model), inputs.seen
            )
            found[prior] = test.metrics(best)
    chosen = max(found, key=lambda prior: _quality(found[prior]))
    choice = Choice(
        chosen,
        max(alone, key=lambda days: _quality(alone[days])),
        found[chosen],
        {days: _both(metrics) for days, metrics in alone.items()},
    )
    say(f"held out: {choice}")
    return choice


def recent_counts(
    log: RatingLog, half_life: float | None, ids: pl.Series
) -> npt.NDArray[np.float64]:
    """Train interactions of items, weighted by their age at the end of the last train day, `[I]`.

    Args:
        log: The data set.
        half_life: Age in days at which one counts half; None counts all alike.
        ids: The items.
    """
    train = log.events.filter(pl.col("split") == "train")
    last = train["timestamp"].max()
    assert isinstance(last, datetime)
    end = last.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    age = (pl.lit(end) - pl.col("timestamp")).dt.total_microseconds() / (86_400 * 1_000_000)
    recent = pl.len().cast(pl.Float64) if half_life is None else (0.5 ** (age / half_life)).sum()
    counts = train.group_by("item_id").agg(recent.alias("recent"))
    wanted = pl.DataFrame({"item_id": ids}).join(
        counts, on="item_id", how="left", maintain_order="left"
    )
    return wanted["recent"].fill_null(0.0).to_numpy()


def _both(metrics: dict[str, float]) -> tuple[float, float]:
    return metrics["recall_at_20"], metrics["ndcg_at_20"]


def _quality(metrics: dict[str, float]) -> float:
    recall, ndcg = _both(metrics)
    return recall * ndcg
