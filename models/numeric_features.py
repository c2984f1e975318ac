"""Numeric features: normalised by what the training data looked like, in training and serving.

A value becomes `(value - mean) / std`; a missing one becomes 0, the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.batch import numbers
from models.config import ModelSettings, Settings, TrainJob
from models.errors import ExamplesError
from models.storage import read_parquet

Floats = npt.NDArray[np.float64]


class NumericStatistics(Settings):
    """What the values of a feature were in training."""

    mean: float
    """Mean of the values that were there."""
    std: float
    """Their standard deviation; 1 where all are alike."""
    missing: int
    """Rows without a value."""
    rows: int
    """All rows: training examples for a user's feature, items for an item's."""

    def text(self) -> str:
        """A few words for the log."""
        share = self.missing / max(self.rows, 1)
        return f"mean {self.mean:.6g}, std {self.std:.6g}, {share:.1%} missing"


class Normaliser:
    """Brings raw values of a tower's numeric features into the range that it was trained with.

    Args:
        names: The features, in the order of the columns.
        statistics: Statistics by feature.

    Raises:
        ValueError: A feature has none.
    """

    def __init__(self, names: Sequence[str], statistics: Mapping[str, NumericStatistics]) -> None:
        self._names = tuple(names)
        for name in names:
            if name not in statistics:
                raise ValueError(f"no statistics of the numeric feature '{name}'")
        self._mean = torch.tensor([statistics[n].mean for n in names], dtype=torch.float64)
        self._std = torch.tensor([statistics[n].std for n in names], dtype=torch.float64)

    def __call__(self, values: Mapping[str, Tensor]) -> Tensor | None:
        """Normalised values `[N, features]`, float32; None without numeric features.

        Args:
            values: Raw values by feature, `[N]`; NaN where one is missing.
        """
        if not self._names:
            return None
        raw = torch.stack([values[name] for name in self._names], dim=1)
        # In float64: a mean far from 0 would swallow the digits that tell values apart.
        scaled = (raw - self._mean.to(raw.device)) / self._std.to(raw.device)
        return scaled.nan_to_num(nan=0.0).float()


def measure_features(job: TrainJob) -> dict[str, dict[str, NumericStatistics]]:
    """Statistics of the numeric features by tower (`user`, `item`) and name.

    Those of the user tower are taken over the training examples, those of the item tower over the
    items that are trained on, each once.

    Args:
        job: The job.

    Raises:
        ExamplesError: A file is missing or damaged, or a value is not finite.
    """
    found: dict[str, dict[str, NumericStatistics]] = {"user": {}, "item": {}}
    user, item = (numeric_names(job.model, side) for side in ("user", "item"))
    if item:
        table = _columns(job.corpus_file, [*item, "train_count"])
        trained = table["train_count"] > 0
        found["item"] = {name: _statistics(name, [table[name][trained]]) for name in item}
    if user:
        tables = [_columns(file, user) for file in job.train_files]
        found["user"] = {n: _statistics(n, (table[n] for table in tables)) for n in user}
    return found


def numeric_names(model: ModelSettings, side: str) -> list[str]:
    """Numeric features of a tower."""
    tower = model.user if side == "user" else model.item
    return [f.name for f in tower.numeric]


def _columns(file: str, names: Sequence[str]) -> dict[str, Floats]:
    table = read_parquet(file, names)
    try:
        return {name: numbers(table, name).numpy() for name in names}
    except ValueError as error:
        raise ExamplesError(str(error), file) from error


def _statistics(name: str, parts: Iterable[Floats]) -> NumericStatistics:
    """Merges parts by Chan et al., "Algorithms for computing the sample variance" (1983)."""
    rows = count = 0
    mean = square = 0.0
    for part in parts:
        rows += part.size
        values = part[~np.isnan(part)]
        if not values.size:
            continue
        own = float(values.mean())
        total = count + values.size
        square += float(((values - own) ** 2).sum())
        square += (own - mean) ** 2 * count * values.size / total
        mean += (own - mean) * values.size / total
        count = total
    std = (square / count) ** 0.5 if count else 0.0
    # Values that are all alike tell nothing; whatever differs by rounding only must not grow.
    return NumericStatistics(
        mean=mean,
        std=std if std > 1e-12 * max(abs(mean), 1.0) else 1.0,
        missing=rows - count,
        rows=rows,
    )
