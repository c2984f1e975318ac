"""Time of training to a fixed Recall@20 on Gowalla's held-out pairs.

The product's recipe against the traditional baseline (full tables, dense gradients, uniform
negatives), and against itself without one part: logQ, TF-IDF, mixed negatives. All have the same
towers, batches and learning rates. Models are measured at fixed points; that time does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.gowalla import HELD_OUT, HELD_OUT_SEED
from benchmarks.options import cache_folder
from benchmarks.quality_run import Observed, prepare, say
from benchmarks.rating_logs import gowalla
from tasks.train import Kind

CONTENDERS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "ours": ("two_tower", {}),
    "traditional": ("traditional", {}),
    "without logQ": ("two_tower", {"training.loss.logq": "off"}),
    "without TF-IDF": ("two_tower", {"training.loss.negatives": "uniform"}),
    "without mixed negatives": ("two_tower", {"training.loss.num_negatives": 0}),
}
"""Trainer, and what differs from the recipe."""
Curve = list[tuple[float, float]]


def curve_of(name: str, seed: int, options: argparse.Namespace, folder: Path) -> Curve:
    """Seconds of training and Recall@20 at each point, until the target is reached."""
    kind, changes = CONTENDERS[name]
    changes = {**changes, "training.seed": seed, "training.epochs": options.epochs}
    log = gowalla().of_users(options.users).held_out(HELD_OUT, HELD_OUT_SEED)
    spec = prepare(folder / f"held-out-{len(log)}", log, changes)
    curve: Curve = []
    training = Observed(spec, kind, folder / f"{name}-{seed}".replace(" ", "-"))
    for epoch, seconds, metrics in training.run(options.points):
        curve.append((round(seconds, 2), round(metrics["recall_at_20"], 5)))
        say(f"{name}, seed {seed}, epoch {epoch:.2f}: {seconds:.0f} s, {curve[-1][1]:.4f}")
        if options.stop and curve[-1][1] >= options.target:
            break
    return curve


def time_to(curve: Curve, target: float) -> float | None:
    """Seconds at which a curve first reaches the target, linear between points."""
    before = (0.0, 0.0)
    for seconds, recall in curve:
        if recall >= target:
            part = (target - before[1]) / (recall - before[1])
            return before[0] + part * (seconds - before[0])
        before = (seconds, recall)
    return None


def summarise(curves: dict[str, list[Curve]], target: float) -> dict[str, Any]:
    """Median time of each contender, and ours over the traditional one's, seed by seed.

    A contender that does not reach the target took at least as long as it was watched.
    """
    report: dict[str, Any] = {"target": target, "contenders": {}}
    times: dict[str, list[float]] = {}
    for name, of_seeds in curves.items():
        reached = [time_to(curve, target) for curve in of_seeds]
        times[name] = [
            curve[-1][0] if t is None else t for t, curve in zip(reached, of_seeds, strict=True)
        ]
        report["contenders"][name] = {
            "seconds": round(statistics.median(times[name]), 1),
            "all_seconds": [round(t, 1) for t in times[name]],
            "reached": sum(t is not None for t in reached),
            "best_recall": [max(r for _, r in curve) for curve in of_seeds],
            "curves": of_seeds,
        }
    ours = times.get("ours", [])
    for name, seconds in times.items():
        if name != "ours" and ours:
            ratios = [mine / theirs for mine, theirs in zip(ours, seconds, strict=True)]
            report["contenders"][name]["ratio"] = round(statistics.median(ratios), 3)
    if "traditional" in times and ours:
        report["time_to_quality_ratio"] = report["contenders"]["traditional"]["ratio"]
    return report


def draw(report: dict[str, Any], target: Path) -> None:
    """Recall against seconds of training, every seed a line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4), layout="constrained")
    for number, (name, found) in enumerate(report["contenders"].items()):
        for seed, curve in enumerate(found["curves"]):
            label = name if seed == 0 else None
            axes.plot(*zip(*curve, strict=True), color=f"C{number}", lw=1.3, label=label)
    axes.axhline(report["target"], color="0.5", lw=0.8, ls=":")
    axes.set_xlabel("seconds of training, one thread")
    axes.set_ylabel("Recall@20 on held-out pairs")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    plt.close(figure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convergence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", type=float, default=0.15, help="Recall@20 to be reached")
    parser.add_argument("--epochs", type=int, default=10, help="passes that are watched at most")
    parser.add_argument("--points", type=int, default=4, help="measurements an epoch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--users", type=int, help="only so many users, for a quick look")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument(
        "--stop",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="stop each training when the target is reached",
    )
    parser.add_argument("--figure", type=Path, help="draw the curves into this SVG file")
    parser.add_argument("--cache", type=Path, help="keeps lakes there")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    curves: dict[str, list[Curve]] = {name: [] for name in options.only}
    with cache_folder(options.cache) as folder:
        for seed in range(1, options.seeds + 1):
            for name in options.only:
                curves[name].append(curve_of(name, seed, options, folder))
    report = summarise(curves, options.target)
    if options.figure:
        draw(report, options.figure)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
