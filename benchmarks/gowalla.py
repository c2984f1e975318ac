"""Recall@20 and NDCG@20 on the published split of Gowalla, beside iALS, ItemKNN and EASE.

A random tenth of the train pairs is held out first, to choose the number of epochs; the other
choices of `conf/quality.yaml` were made on held-out pairs as well (docs/quality.md). The classical
methods are hardly tuned. Then each model learns from all train pairs and the test pairs are read
once. Three seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import classical
from benchmarks.options import cache_folder
from benchmarks.quality_run import (
    K,
    Observed,
    TestUsers,
    changes_of,
    measured,
    over_seeds,
    prepare,
    say,
)
from benchmarks.rating_logs import RatingLog, gowalla
from tasks.run_spec import RunSpec

HELD_OUT = 0.1
HELD_OUT_SEED = 7
PUBLISHED = {
    "YoutubeDNN": (0.1754, 0.1473),
    "MF-CCL": (0.1837, 0.1493),
    "SimpleX": (0.1872, 0.1557),
}
"""Recall@20 and NDCG@20 of two-tower models (BARS, SIGIR 2022), chosen on the test pairs."""
CLASSICAL: dict[str, Callable[[classical.Matrix], Tensor]] = {
    "popularity": lambda train: classical.popularity(train, K),
    "ItemKNN": lambda train: classical.item_knn(train, K, neighbours=200),
    "iALS": lambda train: classical.ials(
        train, K, dim=64, weight=10.0, strength=0.05, sweeps=16, seed=1
    ),
    "EASE": lambda train: classical.ease(train, K, strength=200.0),
}
_METRICS = ("recall_at_20", "ndcg_at_20")


def choose_epochs(
    folder: Path, log: RatingLog, changes: dict[str, Any]
) -> tuple[int, list[dict[str, float]]]:
    """The epoch with the best recall on the held-out pairs, and the metrics of all epochs."""
    spec = prepare(folder / f"held-out-{len(log)}", log.held_out(HELD_OUT, HELD_OUT_SEED), changes)
    curve = []
    for epoch, seconds, metrics in Observed(spec, "two_tower", folder / "chosen").run():
        curve.append({name: round(metrics[name], 5) for name in _METRICS})
        say(f"held out, epoch {epoch:.0f}, {seconds:.0f} s of training: {curve[-1]}")
    best = max(range(len(curve)), key=lambda n: curve[n]["recall_at_20"])
    return best + 1, curve


def others(spec: RunSpec, names: list[str]) -> dict[str, Any]:
    """Metrics of the classical methods on a run's test users."""
    test = TestUsers.of(spec)
    seen, rows = test.seen_by_all(spec)
    train = classical.matrix_of(seen, test.candidates)
    found = {}
    for name in names:
        began = time.perf_counter()
        metrics = test.metrics(CLASSICAL[name](train)[rows])
        seconds = time.perf_counter() - began
        say(f"{name}, {seconds:.0f} s: {[round(metrics[m], 5) for m in _METRICS]}")
        found[name] = {m: round(v, 5) for m, v in metrics.items()} | {"seconds": round(seconds)}
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gowalla",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=20, help="tried on the held-out pairs")
    parser.add_argument("--chosen", type=int, help="epochs, when they were chosen before")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--users", type=int, help="only so many users, for a quick look")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="settings that differ from the recipe, such as model.temperature=0.2",
    )
    parser.add_argument("--classical", nargs="*", choices=CLASSICAL, default=list(CLASSICAL))
    parser.add_argument("--cache", type=Path, help="keeps lakes and models there")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    report: dict[str, Any] = {"changes": changes_of(options.set)}
    log = gowalla().of_users(options.users)
    with cache_folder(options.cache) as folder:
        chosen = options.chosen
        if chosen is None:
            tried = {**report["changes"], "training.epochs": options.epochs}
            chosen, report["held_out"] = choose_epochs(folder, log, tried)
        report["epochs"] = chosen
        seeds = []
        for seed in range(1, options.seeds + 1):
            fixed = {"training.epochs": chosen, "training.seed": seed}
            # The product's steps, up to the published bundle.
            spec = prepare(folder / f"published-{len(log)}", log, {**report["changes"], **fixed})
            seeds.append(measured(spec))
            say(f"two-tower, seed {seed}: {[round(seeds[-1][m], 5) for m in _METRICS]}")
        report |= {"two_tower": over_seeds(seeds)} if seeds else {}
        if options.classical:
            spec = prepare(folder / f"published-{len(log)}", log, {"training.seed": 1})
            report["classical"] = others(spec, options.classical)
    report["published"] = PUBLISHED
    for metric, place in zip(_METRICS, (0, 1), strict=True):
        mine = report.get("two_tower", {}).get(metric, {}).get("mean")
        if mine is not None:
            for name, values in PUBLISHED.items():
                report[f"{metric}_over_{name}"] = round(mine / values[place], 4)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
