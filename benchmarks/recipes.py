"""The recipe of Gowalla on MovieTweetings and Online Retail, cut in time.

The first 80 % of the rows are trained on, the last 10 % tested on; users and items that the
training knows, pairs that are new. Only the prior, which is about time, is chosen for each data
set, on the last train rows (`benchmarks/prior_choice.py`). Beside the model popularity (of all
time, and with the half-life that is best on the same held-out rows), ItemKNN, iALS and GF-CF on
the same split. Recall is given for the head, torso and tail of the items too and, ranking all
items of the catalogue, for those that nobody had taken before.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from benchmarks import classical
from benchmarks.options import cache_folder
from benchmarks.prior_choice import Choice, choose_prior, recent_counts
from benchmarks.quality_run import K, TestUsers, measured, over_seeds, prepare, say
from benchmarks.rating_logs import LOGS, RatingLog
from tasks.run_spec import RunSpec

DATA_SETS = ("movietweetings", "online_retail")
PUBLISHED = {
    "movietweetings": {"popularity": (0.1809, 0.0825), "GF-CF": (0.1718, 0.0793)},
    "online_retail": {"iALS": (0.0851, 0.0749), "GF-CF": (0.0935, 0.0878)},
}
"""The strongest reference figures of the PROVENANCE files: Recall@20, NDCG@20."""
_METRICS = ("recall_at_20", "ndcg_at_20")


def references(
    spec: RunSpec, log: RatingLog, half_life: float | None
) -> dict[str, dict[str, float]]:
    """Metrics of methods without towers on a run's test users.

    Args:
        spec: The run.
        log: Its data set.
        half_life: Half-life of the recent popularity, in days.
    """
    test = TestUsers.of(spec)
    seen, rows = test.seen_by_all(spec)
    train = classical.matrix_of(seen, test.candidates)
    found: dict[str, Tensor] = {
        "popularity": classical.popularity(train, K),
        "ItemKNN": classical.item_knn(train, K),
        "GF-CF": classical.graph_filter(train, K),
        "iALS": classical.ials(train, K, dim=64, weight=10.0, strength=0.05, sweeps=16, seed=1),
    }
    ids = pl.Series(test.items["item_id"].combine_chunks())[: test.candidates]
    found["recent popularity"] = classical.by_weight(recent_counts(log, half_life, ids), train, K)
    return {
        name: {metric: round(v, 5) for metric, v in test.metrics(best[rows]).items()}
        for name, best in found.items()
    }


def two_tower(
    folder: Path, log: RatingLog, choice: Choice, seed: int
) -> tuple[RunSpec, dict[str, float]]:
    """The run and the metrics of one model."""
    changes = {"training.seed": seed, "model.prior": choice.prior.model_dump()}
    spec = prepare(folder, log, changes)
    return spec, measured(spec, new_items=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recipes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", type=Path, help="keeps lakes and models there")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    with cache_folder(options.cache) as folder:
        for name in options.data:
            seeds, log = [], LOGS[name]()
            choice = choose_prior(folder / f"{name}-held-out", log)
            for seed in range(1, options.seeds + 1):
                spec, metrics = two_tower(folder / name, log, choice, seed)
                seeds.append(metrics)
                say(f"{name}, seed {seed}: {[round(metrics[m], 4) for m in _METRICS]}")
            found: dict[str, Any] = {
                "choice": asdict(choice) | {"prior": choice.prior.model_dump()},
                "two_tower": over_seeds(seeds),
                "references": references(spec, log, choice.half_life_days),
                "published": PUBLISHED[name],
            }
            for metric in _METRICS:
                best = max((of[metric], reference) for reference, of in found["references"].items())
                ratio = found["two_tower"][metric]["mean"] / best[0]
                found[f"{metric}_over_best_reference"] = round(ratio, 4)
                say(f"{name}: {metric} is {ratio:.3f} times that of {best[1]}")
            report[name] = found
    print(json.dumps(report))


if __name__ == "__main__":
    main()
