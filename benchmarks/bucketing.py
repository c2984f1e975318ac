"""Recall against bytes: the ways to give IDs rows of an embedding table.

    python -m benchmarks.bucketing [--data NAME …] [--shares 0.1] [--seeds 3] [--figure FILE.svg]

The recipe of the quality benchmarks with a row for every item is the measure. Then the table of
items, its only one, gets a share of those rows, spent in several ways (`WAYS`), and everything
else stays. The last line is one JSON object; `kept` is the Recall@20 of a way over that of the full
table, at the same seed, averaged over seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import torch

from benchmarks.options import cache_folder
from benchmarks.quality_run import measured, over_seeds, prepare, say
from benchmarks.rating_logs import LOGS

TABLE = "item"
FULL = "full table"
_NOBODY = 1 << 40
"""More occurrences than any ID has."""


@dataclass(frozen=True)
class Way:
    """A way to spend the rows of a table.

    Attributes:
        own: Share of the rows that frequent IDs own; the others are tail buckets. None for all
            but one row.
        hashes: Bucket rows of a tail ID; 0 leaves it without any vector.
    """

    own: float | None
    hashes: int = 1

    def vocabulary(self, rows: int) -> dict[str, Any]:
        """Settings of a table with so many rows, the padding row included."""
        if self.own == 0:
            return {"min_count": _NOBODY, "tail_buckets": rows - 1}
        tail = 1 if self.own is None else max(2, round((rows - 1) * (1 - self.own)))
        return {
            "min_count": 1,
            "max_rows": rows - 1 - tail,
            "tail_buckets": tail,
            "hashes": max(1, self.hashes),
        }


WAYS = {
    "shared bucket": Way(own=None),
    "dropped to unknown": Way(own=None, hashes=0),
    "modulo hash": Way(own=0),
    "hashed buckets, 1/2": Way(own=0.5),
    "hashed buckets, 1/10": Way(own=0.9),
    "double hashing, 1/2": Way(own=0.5, hashes=2),
    "double hashing, 1/10": Way(own=0.9, hashes=2),
}
"""By name; a fraction says how many of the rows are buckets."""


@contextmanager
def without_buckets() -> Iterator[None]:
    """Tail IDs get the padding row, which is always zero: no table of the product does that."""

    def nothing(ids: pl.Series, *, buckets: int, hashes: int, seed: int) -> list[pl.Series]:
        return [pl.Series("bucket", [0], dtype=pl.Int32).new_from_index(0, len(ids))] * hashes

    with patch("tasks.longtail.encoding.tail_buckets", nothing):
        yield


def one_run(
    lake: Path, data: str, changes: dict[str, Any], dropped: bool = False
) -> tuple[int, dict[str, float]]:
    """Rows and metrics of one model.

    Args:
        lake: A lake that only runs with the same buckets share.
        data: Name of the data set.
        changes: Settings that differ from the recipe, by dotted keys.
        dropped: Whether tail IDs have no vector.
    """
    with without_buckets() if dropped else nullcontext():
        spec = prepare(lake, LOGS[data](), changes)
    rows = int(spec.output("vocabulary", TABLE).manifest.meta["rows"])
    return rows, measured(spec)


def compare(folder: Path, data: str, shares: Sequence[float], seeds: int) -> dict[str, Any]:
    """All ways on one data set."""
    report: dict[str, Any] = {}
    recall: dict[str, list[float]] = {}

    def run(name: str, way: Way | None, rows: int) -> int:
        changes = {f"tables.{TABLE}.vocabulary": way.vocabulary(rows)} if way else {}
        lake = folder / data / name.replace(" ", "-").replace("/", "-")
        found, used = [], 0
        for seed in range(1, seeds + 1):
            dropped = way is not None and way.hashes == 0
            used, metrics = one_run(lake, data, {**changes, "training.seed": seed}, dropped)
            found.append({key: metrics[key] for key in METRICS if key in metrics})
            say(f"{data}, {name}, seed {seed}: {used} rows, {found[-1]}")
        recall[name] = [metrics["recall_at_20"] for metrics in found]
        kept = sum(a / b for a, b in zip(recall[name], recall[FULL], strict=True)) / seeds
        report[name] = {"rows": used, "kept": round(kept, 4), **over_seeds(found)}
        return used

    all_rows = run(FULL, None, 0)
    for share in shares:
        for name, way in WAYS.items():
            run(f"{name} at {share:g}", way, max(5, round(share * all_rows)))
    for figures in report.values():
        figures["bytes_share"] = round(figures["rows"] / all_rows, 4)
    return report


METRICS = ("recall_at_20", "ndcg_at_20", "recall_at_20/head", "recall_at_20/tail")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bucketing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", nargs="+", choices=LOGS, default=["synthetic", "movietweetings"])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.1], help="of all rows")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figure", type=Path, help="draw the result into this SVG file")
    parser.add_argument("--cache", type=Path, help="keeps lakes and models there")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with cache_folder(options.cache) as folder:
        found = {
            name: compare(folder, name, options.shares, options.seeds) for name in options.data
        }
    if options.figure:
        from benchmarks.bucketing_figure import draw

        draw(found, options.figure)
    print(json.dumps({"seeds": options.seeds, "data": found}))


if __name__ == "__main__":
    main()
