"""Recall against bytes: the ways to give IDs rows of an embedding table.

    python -m benchmarks.bucketing [--data NAME …] [--shares 0.1 …] [--seeds 3] [--figure FILE.svg]

The model is that of the quality benchmarks without attributes and neighbours, so that the table of
items is its only one; a way may have some neighbours, and pays for their lists. With a row for
every item it is the measure; then the table gets a share of those bytes, the optimizer's among
them, spent in several ways (`WAYS`), and everything else stays. The last line is one JSON object;
`kept` is the Recall@20 of a way over that of the full table, at the same seed, averaged over seeds.
Data sets have the sizes of `SIZES` unless the call names others. With `--cache` a second call takes
up where the first one ended.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from benchmarks.options import cache_folder
from benchmarks.quality_run import RECIPE, Observed, over_seeds, prepare, say
from benchmarks.rating_logs import LOGS, RatingLog
from tasks.config import digest_of
from tasks.run_spec import RunSpec

TABLE = "item"
FULL = "full table"
_FEATURE = "id"
"""Feature of the item tower that reads the table."""
_NOBODY = 1 << 40
"""More occurrences than any ID has."""
_WIDTH = {"fp32": 4, "fp16": 2}
_STATE_BYTES = 4
"""Row-wise Adagrad keeps one number a row."""
_CODE_BYTES = 4
"""Number of a neighbour."""
_LEAST_ROWS = 6
METRICS = ("recall_at_20", "ndcg_at_20", "recall_at_20/head", "recall_at_20/tail")


@dataclass(frozen=True)
class Way:
    """A way to spend the bytes of a table.

    Attributes:
        own: Share of the rows that frequent IDs own; the others are tail buckets. None for all
            but one row.
        hashes: Bucket rows of a tail ID; 0 leaves it without any vector.
        dim: Width of a row.
        dtype: Type of its numbers.
        neighbours: Items with a row of their own whose rows the item tower reads beside an item's.
    """

    own: float | None
    hashes: int = 1
    dim: int = 64
    dtype: Literal["fp32", "fp16"] = "fp32"
    neighbours: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row while it is trained."""
        return self.dim * _WIDTH[self.dtype] + _STATE_BYTES

    def rows(self, budget: float, ids: int) -> int:
        """Rows that so many bytes buy.

        Args:
            budget: Bytes.
            ids: IDs of the full table; the lists of their neighbours cost, too.
        """
        return max(_LEAST_ROWS, int((budget - self.list_bytes(ids)) / self.row_bytes))

    def list_bytes(self, ids: int) -> int:
        """Bytes of the neighbours of so many IDs."""
        return _CODE_BYTES * self.neighbours * ids

    @property
    def item_features(self) -> list[dict[str, Any]]:
        """Inputs of the item tower."""
        features: list[dict[str, Any]] = [{"name": _FEATURE, "table": TABLE}]
        if self.neighbours:
            kind = {"kind": "neighbours", "max_length": self.neighbours}
            features.append({"name": "neighbours", "table": TABLE, **kind})
        return features

    def table(self, rows: int) -> dict[str, Any]:
        """Settings of a table with so many rows, the padding row included."""
        vocabulary: dict[str, Any]
        if self.own == 0:
            vocabulary = {"min_count": _NOBODY, "tail_buckets": rows - 1}
        else:
            tail = 1 if self.own is None else max(2, round((rows - 1) * (1 - self.own)))
            vocabulary = {"min_count": 1, "max_rows": rows - 1 - tail, "tail_buckets": tail}
        vocabulary["hashes"] = max(1, self.hashes)
        return {
            "source": "interactions.item_id",
            "dim": self.dim,
            "dtype": self.dtype,
            "vocabulary": vocabulary,
        }


EVERY_ID = Way(own=None)
WAYS = {
    "shared bucket": Way(own=None),
    "dropped to unknown": Way(own=None, hashes=0),
    "modulo hash": Way(own=0),
    "hashed buckets, 1/2": Way(own=0.5),
    "hashed buckets, 1/10": Way(own=0.9),
    "double hashing, 1/2": Way(own=0.5, hashes=2),
    "double hashing, 1/10": Way(own=0.9, hashes=2),
    "1/10, fp16": Way(own=0.9, dtype="fp16"),
    "1/10, fp16, 32 wide": Way(own=0.9, dim=32, dtype="fp16"),
    "2 neighbours, 1/10, fp16, 32 wide": Way(own=0.9, dim=32, dtype="fp16", neighbours=2),
}
"""By name; a fraction says how many of the rows are buckets."""
CLOSE = (FULL, "shared bucket", "modulo hash", "hashed buckets, 1/10")
"""Ways that are compared at every seed."""
CURVE = ("modulo hash", "hashed buckets, 1/10", "1/10, fp16, 32 wide")
"""Ways that are compared at the other shares, too."""


@dataclass(frozen=True)
class Size:
    """How much of a data set is trained on.

    Attributes:
        users: So many random users; None for all.
        epochs: Epochs of every training.
    """

    users: int | None = None
    epochs: int = 4


SIZES = {"gowalla": Size(users=6000, epochs=3)}
"""Of data sets that would take hours."""


@dataclass(frozen=True)
class World:
    """A data set, and where its cells are kept.

    Attributes:
        name: Name of the data set.
        log: Its rows.
        folder: Keeps the lake and the cells.
        epochs: Epochs of every training.
    """

    name: str
    log: RatingLog
    folder: Path
    epochs: int

    def cell(self, way: Way, rows: int | None, seed: int) -> dict[str, float]:
        """Rows and metrics of one training; read from disk where it was measured before.

        Args:
            way: How the rows are spent.
            rows: Rows of the table; None for as many as there are IDs.
            seed: Seed of the training.
        """
        table = way.table(rows) if rows else {**way.table(3), "vocabulary": {"min_count": 1}}
        settings = [RECIPE.read_text(encoding="utf-8"), table, way.hashes, self.epochs, seed]
        settings += [way.item_features]
        file = self.folder / "cells" / f"{digest_of([self.name, len(self.log), settings])}.json"
        if file.exists():
            known: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
            return known
        changes = {
            f"tables.{TABLE}": table,
            "model.item.features": way.item_features,
            "training.epochs": self.epochs,
            "training.seed": seed,
        }
        spec = prepare(self.folder / "lake", self.log, changes)
        corpus = self._corpus(spec) if way.hashes == 0 else None
        training = Observed(spec, "two_tower", self.folder / "training", corpus_file=corpus)
        [(_, seconds, metrics)] = training.run(1 / self.epochs)
        used = int(spec.output("vocabulary", TABLE).manifest.meta["rows"])
        found = {"rows": used, "seconds": round(seconds, 1)}
        found |= {name: metrics[name] for name in METRICS if name in metrics}
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.replace(file)
        return found

    def _corpus(self, spec: RunSpec) -> Path:
        """A file with a run's corpus whose IDs have their own row or none."""
        examples = spec.output("examples", "examples")
        corpus = spec.lake().read_table(examples.file("items/part-0.parquet"))
        buckets = int(spec.output("vocabulary", TABLE).manifest.meta["tail_buckets"])
        path = self.folder / "corpus.parquet"
        pq.write_table(owners_only(corpus, buckets), path)
        return path


def owners_only(corpus: pa.Table, buckets: int) -> pa.Table:
    """A corpus with the padding row, which is always zero, in place of bucket rows.

    Args:
        corpus: The corpus.
        buckets: Tail buckets of the table of items.
    """
    codes = corpus[_FEATURE].combine_chunks()
    owned = pc.if_else(pc.greater(codes.values, buckets), codes.values, pa.scalar(0, pa.int32()))
    place = corpus.column_names.index(_FEATURE)
    return corpus.set_column(place, _FEATURE, pa.ListArray.from_arrays(codes.offsets, owned))


class Trainings(Protocol):
    """What each training of a data set finds; see `World`."""

    @property
    def name(self) -> str:
        """Name of the data set."""

    def cell(self, way: Way, rows: int | None, seed: int) -> dict[str, float]:
        """Rows and metrics of one training."""


def compare(
    world: Trainings,
    shares: Sequence[float],
    ways: Mapping[str, Way],
    seeds_of: Callable[[str], int],
) -> dict[str, Any]:
    """All ways on one data set.

    Args:
        world: The data set.
        shares: Of the full table's bytes. The first one is compared with all seeds of all ways,
            the others with one seed of the ways of `CURVE`.
        ways: The ways, by name.
        seeds_of: Number of seeds of a way, by its name; the full table needs the most.
    """
    cells: dict[str, list[dict[str, float]]] = {}
    report: dict[str, Any] = {}

    def ids() -> int:
        return int(cells[FULL][0]["rows"])

    def run(name: str, way: Way, rows: int | None, seeds: int) -> None:
        cells[name] = []
        for seed in range(1, seeds + 1):
            found = world.cell(way, rows, seed)
            cells[name].append(found)
            shown = {key: round(value, 4) for key, value in found.items()}
            say(f"{world.name}, {name}, seed {seed}: {shown}")
        recall, full = ([cell["recall_at_20"] for cell in cells[n]] for n in (name, FULL))
        kept = [mine / whole for mine, whole in zip(recall, full, strict=False)]
        report[name] = {
            "rows": int(cells[name][0]["rows"]),
            "bytes": int(cells[name][0]["rows"]) * way.row_bytes + way.list_bytes(ids()),
            "seeds": seeds,
            "kept": round(sum(kept) / len(kept), 4),
            **over_seeds([{m: cell[m] for m in METRICS if m in cell} for cell in cells[name]]),
        }

    run(FULL, EVERY_ID, None, seeds_of(FULL))
    whole = report[FULL]["bytes"]
    for number, share in enumerate(shares):
        for name, way in ways.items():
            if number == 0 or name in CURVE:
                rows = way.rows(share * whole, ids())
                run(f"{name} at {share:g}", way, rows, 1 if number else seeds_of(name))
    for figures in report.values():
        figures["bytes_share"] = round(figures["bytes"] / whole, 4)
    return report


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bucketing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data", nargs="+", choices=LOGS, default=["synthetic", "movietweetings", "gowalla"]
    )
    parser.add_argument(
        "--shares",
        nargs="+",
        type=float,
        default=[0.1, 0.05, 0.25],
        help="of all bytes, up to four; the first one for all ways",
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--seeds", type=int, default=3, help=f"of {', '.join(CLOSE)}")
    parser.add_argument("--other-seeds", type=int, default=1, help="of the other ways")
    parser.add_argument("--epochs", type=int, help="of every training")
    parser.add_argument("--users", type=int, help="only so many random users; 0 for all")
    parser.add_argument("--figure", type=Path, help="draw the result into this SVG file")
    parser.add_argument("--cache", type=Path, help="keeps lakes and finished cells there")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    found = {}
    ways = {name: WAYS[name] for name in options.ways}
    with cache_folder(options.cache) as folder:
        for name in options.data:
            size = SIZES.get(name, Size())
            users = size.users if options.users is None else options.users or None
            epochs = options.epochs or size.epochs
            log = replace(LOGS[name]().of_users(users), items=None, attributes={})
            world = World(name, log, folder / f"{name}-test-{len(log)}", epochs)
            found[name] = {"users": users, "epochs": epochs} | {
                "ways": compare(
                    world,
                    options.shares,
                    ways,
                    lambda way: options.seeds if way in CLOSE else options.other_seeds,
                )
            }
    if options.figure:
        from benchmarks.bucketing_figure import draw

        draw(found, options.figure)
    print(json.dumps({"data": found}))


if __name__ == "__main__":
    main()
