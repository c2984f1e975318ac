"""A small training job on made-up examples in the shape of a configuration.

It lets a machine be measured before there is any data: IDs follow Zipf's law, lists have the
lengths that are assumed of the data, and everything else is as the settings say.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from models.alias_table import build_alias_table
from models.batch import has_history
from models.config import (
    EarlyStoppingSettings,
    FeatureSettings,
    TrainJob,
    ValidationSettings,
    WarmStartSettings,
)
from models.planning import Job

_PADDING = 1  # rows before those of IDs
_FILE_ROWS = 1 << 16


def rehearsal_job(job: Job, folder: Path, steps: int, seed: int = 1) -> TrainJob:
    """Writes examples for some steps on one rank, and returns a job on them.

    Args:
        job: What is to be measured; it takes that much memory.
        folder: Where files go.
        steps: Macro-batches to write.
        seed: Seed of the examples.
    """
    training = job.training.model_copy(
        update={
            "nproc": 1,
            "table_ranks": None,
            "epochs": 1,
            "checkpoint_every": 1 << 40,
            "trace_steps": 0,
            "validation": ValidationSettings(users=0),
            "early_stopping": EarlyStoppingSettings(),
            "warm_start": WarmStartSettings(),
        }
    )
    maker = _Maker(job, np.random.default_rng(seed))
    folder.mkdir(parents=True, exist_ok=True)
    corpus = str(folder / "items.parquet")
    pq.write_table(maker.corpus(), corpus)
    negatives = None
    if training.loss.negatives is not None and training.loss.num_negatives:
        negatives = str(folder / "negatives.parquet")
        weights = np.arange(1, job.data.items + 1, dtype=np.float64) ** -0.5
        pq.write_table(build_alias_table(weights).to_arrow(), negatives)
    left = steps * training.batch_size * training.accumulate
    files: list[str] = []
    while left:
        rows = min(left, _FILE_ROWS)
        files.append(str(folder / f"train-{len(files)}.parquet"))
        pq.write_table(maker.examples(rows), files[-1])
        left -= rows
    return TrainJob(
        kind="two_tower",
        train_files=tuple(files),
        corpus_file=corpus,
        negatives_file=negatives,
        table_rows=dict(job.table_rows),
        table_hashes={name: job.data.hashes.get(name, 1) for name in job.tables},
        num_users=maker.users,
        tables=dict(job.tables),
        model=job.model,
        training=training,
        checkpoint_dir=str(folder / "checkpoints"),
        output_dir=str(folder / "weights"),
        digest="rehearsal",
    )


class _Maker:
    """Draws examples and items.

    Args:
        job: What they are for.
        random: Where chance comes from.
    """

    def __init__(self, job: Job, random: np.random.Generator) -> None:
        self._job = job
        self._random = random
        self.users = max(
            (job.table_rows[f.table] for f in job.model.user.coded if f.kind == "id"),
            default=job.data.items,
        )

    def corpus(self) -> pa.Table:
        """Every item, the most frequent first."""
        items, model = self._job.data.items, self._job.model
        share = np.arange(1, items + 1) ** -self._job.data.exponent
        columns: dict[str, pa.Array] = {
            "train_count": pa.array(np.ceil(share / share.sum() * 100 * items).astype(np.int64)),
            "recent_count": pa.array(share.astype(np.float32)),
        }
        for f in model.item.coded:
            if f.kind == "id":
                # An item's row is its place among the items, as far as there are rows.
                own = np.minimum(np.arange(items) + _PADDING, self._job.table_rows[f.table] - 1)
                columns[f.name] = self._lists(f, own, np.ones(items, np.int64))
            elif f.kind == "neighbours":
                lengths = self._lengths(self._job.data.codes_of(f), items)
                others = self._draw(int(lengths.sum()), items).astype(np.int32)
                columns[f.name] = _ragged(others, lengths)
            else:
                columns[f.name] = self._codes(f, items)
        columns |= {f.name: pa.array(self._random.normal(size=items)) for f in model.item.numeric}
        return pa.table(columns)

    def examples(self, rows: int) -> pa.Table:
        """Some examples."""
        model, data = self._job.model, self._job.data
        columns = {
            "user": pa.array(self._draw(rows, self.users)),
            "item": pa.array(self._draw(rows, data.items).astype(np.int32)),
            "weight": pa.array(np.ones(rows, np.float32)),
        }
        for f in model.user.coded:
            if f.kind != "history":
                columns[f.name] = self._codes(f, rows)
        columns |= {f.name: pa.array(self._random.normal(size=rows)) for f in model.user.numeric}
        if has_history(model):
            lengths = self._lengths(
                max(
                    data.elements.get(f.name, f.max_length / 2)
                    for f in model.user.features
                    if f.kind == "history"
                ),
                rows,
            )
            items = self._draw(int(lengths.sum()), data.items).astype(np.int32)
            columns["history"] = _ragged(items, lengths)
        return pa.table(columns)

    def _codes(self, feature: FeatureSettings, rows: int) -> pa.Array:
        lengths = np.ones(rows, np.int64)
        if feature.kind == "list":
            lengths = self._lengths(self._job.data.elements.get(feature.name, 4.0), rows)
        count = self._job.table_rows[feature.table] - _PADDING
        drawn = self._draw(int(lengths.sum()), count) + _PADDING
        return self._lists(feature, drawn, lengths)

    def _lists(
        self, feature: FeatureSettings, first: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> pa.Array:
        """Codes of elements; a second code of double hashing is another row."""
        hashes = self._job.data.hashes.get(feature.table, 1)
        rows = self._job.table_rows[feature.table]
        codes = np.stack([(first + n * 7919) % rows for n in range(hashes)], axis=1).ravel()
        return _ragged(codes.astype(np.int32), lengths * hashes)

    def _lengths(self, mean: float, rows: int) -> npt.NDArray[np.int64]:
        """Lengths from 0 to twice the mean."""
        return self._random.integers(0, round(2 * mean) + 1, rows)

    def _draw(self, size: int, ids: int) -> npt.NDArray[np.int64]:
        """Places of IDs by Zipf's law, the hottest first, by inverting its smooth form."""
        exponent = self._job.data.exponent
        chance = self._random.random(size)
        if abs(exponent - 1) < 1e-6:
            place = np.exp(chance * np.log(ids + 1.0))
        else:
            power = 1 - exponent
            place = (1 + chance * ((ids + 1.0) ** power - 1)) ** (1 / power)
        return np.minimum(place.astype(np.int64), ids) - 1


def _ragged(values: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
