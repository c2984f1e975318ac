"""Time of training to a fixed Recall@20 on Gowalla's held-out pairs.

The product's recipe against the traditional baseline (full tables, dense gradients, uniform
negatives), and against itself without one part: logQ, TF-IDF, mixed negatives. All have the same
towers, batches and learning rates. They take turns, a part of an epoch each, in one process with
one thread; what is compared is their processor time, which another busy core hardly touches. The
time of measuring does not count.

The target is 95 % of the best recall that the recipe reaches in `--epochs`, at a seed that takes
no part in the comparison. Uniform negatives leave the items' popularity in the scores that other
negatives take out of them, so contenders are measured with the prior at several strengths, and
the best one counts; the traditional baseline also without any, as one would write it by hand. A
contender is given up after `--patience` times the recipe's time to the target: it took at least
as long, and its ratio is an upper bound. With `--cache` a second call takes up at the first seed
that is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.convergence_figure import draw
from benchmarks.gowalla import HELD_OUT, HELD_OUT_SEED
from benchmarks.options import cache_folder
from benchmarks.quality_run import RECIPE, Observed, prepare, say
from benchmarks.rating_logs import RatingLog, gowalla
from models.trainer import training_environment
from tasks.config import digest_of
from tasks.train import Kind

AIM = 0.95
"""The target, of the recipe's best recall."""
STRENGTHS = (0.0, 0.6, 1.0)
"""Of the prior, at every point; 0.6 is the recipe's."""


@dataclass(frozen=True)
class Contender:
    """A way to train.

    Attributes:
        kind: The trainer.
        changes: What differs from the recipe.
        strengths: Strengths of the prior that it is measured with.
    """

    kind: Kind = "two_tower"
    changes: Mapping[str, Any] = field(default_factory=dict)
    strengths: tuple[float, ...] = STRENGTHS


CONTENDERS = {
    "ours": Contender(),
    "traditional": Contender("traditional"),
    "traditional, no prior": Contender("traditional", strengths=(0.0,)),
    "without logQ": Contender(changes={"training.loss.logq": "off"}),
    "without TF-IDF": Contender(changes={"training.loss.negatives": "uniform"}),
    "without mixed negatives": Contender(changes={"training.loss.num_negatives": 0}),
}
_REFERENCE_SEED = 0
Curve = list[tuple[float, float, float]]
"""Processor seconds and seconds of training, and Recall@20."""


class Contest:
    """Trainings on the same pairs.

    Args:
        options: The command line's.
        folder: Keeps lakes and curves.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        whole = gowalla().of_users(options.users)
        self._log: RatingLog = whole.held_out(HELD_OUT, HELD_OUT_SEED)

    def target(self) -> float:
        """The recall to be reached."""
        if self._options.target is not None:
            return float(self._options.target)
        points = 1

        def follow() -> dict[str, Curve]:
            run = self._curve("ours", _REFERENCE_SEED, points)
            return {"ours": [*run]}

        curve = self._kept([_REFERENCE_SEED, points], follow)["ours"]
        return AIM * max(recall for *_, recall in curve)

    def curves(self, seed: int, target: float) -> dict[str, Curve]:
        """The curve of every contender of a seed, until the target, or until it is given up."""
        names = self._options.only if seed <= self._options.other_seeds else RIVALS
        names = [name for name in names if name in self._options.only]
        watched = [seed, self._options.points, round(target, 6), self._options.patience, names]

        def race() -> dict[str, Curve]:
            curves: dict[str, Curve] = {name: [] for name in names}
            running = {name: self._curve(name, seed, self._options.points) for name in names}
            while running:
                for name in [*running]:
                    point = next(running[name], None)
                    if point is not None:
                        curves[name].append(point)
                    limit = time_to(curves["ours"], target) if "ours" in names else None
                    if limit is None and "ours" in names and "ours" not in running:
                        limit = curves["ours"][-1][0]
                    if point is None or is_over(point, target, limit, self._options.patience):
                        del running[name]
            return curves

        return self._kept(watched, race)

    def _curve(self, name: str, seed: int, points: int) -> Iterator[tuple[float, float, float]]:
        """The points of a training, each when it is asked for."""
        contender = CONTENDERS[name]
        epochs = self._options.epochs
        if name != "ours":
            # Whoever is slower is watched longer.
            epochs *= max(1, round(self._options.patience))
        changes = {**contender.changes, "training.seed": seed, "training.epochs": epochs}
        spec = prepare(self._folder / f"held-out-{len(self._log)}", self._log, changes)
        training = Observed(
            spec,
            contender.kind,
            self._folder / "trainings" / f"{name}-{seed}".replace(" ", "-"),
            users=self._options.measured,
            strengths=contender.strengths,
        )
        for epoch, seconds, metrics in training.run(points):
            point = (training.cpu_seconds, seconds, metrics["recall_at_20"])
            say(
                f"{name}, seed {seed}, epoch {epoch:.2f}: {point[0]:.0f} s of processor time, "
                f"{seconds:.0f} s, {point[2]:.4f}"
            )
            yield round(point[0], 2), round(seconds, 2), round(point[2], 5)

    def _kept(self, watched: list[Any], make: Callable[[], dict[str, Curve]]) -> dict[str, Curve]:
        """Curves from disk, or made and written there."""
        options = [self._options.epochs, self._options.measured, len(self._log)]
        name = digest_of([RECIPE.read_text(encoding="utf-8"), options, watched])
        file = self._folder / "curves" / f"{name}.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(make()), encoding="utf-8")
            partial.replace(file)
        found: dict[str, Curve] = json.loads(file.read_text(encoding="utf-8"))
        return found


RIVALS = ["ours", "traditional"]
"""Contenders that run at every seed."""


def is_over(
    point: tuple[float, float, float], target: float, limit: float | None, patience: float
) -> bool:
    """Whether a contender need not be watched any longer.

    Args:
        point: Where it is.
        target: Recall to be reached.
        limit: Processor time that the recipe took to reach it; None while it has not.
        patience: How many times that long the others are watched.
    """
    return point[2] >= target or (limit is not None and point[0] >= patience * limit)


def time_to(curve: Curve, target: float) -> float | None:
    """Processor seconds at which a curve first reaches the target, linear between points."""
    before = (0.0, 0.0)
    for seconds, _, recall in curve:
        if recall >= target:
            part = (target - before[1]) / (recall - before[1])
            return before[0] + part * (seconds - before[0])
        before = (seconds, recall)
    return None


def summarise(curves: dict[str, list[Curve]], target: float) -> dict[str, Any]:
    """Median time of each contender, and ours over each other one's, seed by seed.

    A contender that does not reach the target took at least as long as it was watched: `bound`
    says that its ratio is at most the number given.
    """
    report: dict[str, Any] = {"target": round(target, 5), "contenders": {}}
    ours = [time_to(curve, target) for curve in curves.get("ours", [])]
    for name, of_seeds in curves.items():
        reached = [time_to(curve, target) for curve in of_seeds]
        times = [
            curve[-1][0] if t is None else t for t, curve in zip(reached, of_seeds, strict=True)
        ]
        found: dict[str, Any] = {
            "cpu_seconds": round(statistics.median(times), 1),
            "all_cpu_seconds": [round(t, 1) for t in times],
            "reached": sum(t is not None for t in reached),
            "best_recall": [max(recall for *_, recall in curve) for curve in of_seeds],
            "curves": of_seeds,
        }
        mine = [t for t in ours if t is not None]
        if name != "ours" and mine and len(mine) == len(ours):
            ratios = [a / b for a, b in zip(mine, times, strict=False)]
            found["ratio"] = round(statistics.median(ratios), 3)
            found["ratios"] = [round(ratio, 3) for ratio in ratios]
            found["bound"] = found["reached"] < len(reached)
        report["contenders"][name] = found
    if "ratio" in report["contenders"].get("traditional", {}):
        report["time_to_quality_ratio"] = report["contenders"]["traditional"]["ratio"]
    return report


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convergence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", type=float, help="Recall@20 to be reached, instead of the rule")
    parser.add_argument("--epochs", type=int, default=4, help="passes of the recipe")
    parser.add_argument("--patience", type=float, default=3.5, help="of the recipe's time")
    parser.add_argument("--points", type=int, default=3, help="measurements an epoch")
    parser.add_argument("--seeds", type=int, default=3, help=f"of {' and '.join(RIVALS)}")
    parser.add_argument("--other-seeds", type=int, default=1, help="of the other contenders")
    parser.add_argument("--users", type=int, help="only so many users, for a quick look")
    parser.add_argument("--measured", type=int, default=4000, help="users that are measured")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--figure", type=Path, help="draw the curves into this SVG file")
    parser.add_argument("--cache", type=Path, help="keeps lakes and finished seeds there")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    curves: dict[str, list[Curve]] = {name: [] for name in options.only}
    with ExitStack() as stack:
        folder = stack.enter_context(cache_folder(options.cache))
        # The trainings that take turns share one process group.
        stack.enter_context(training_environment(torch.device("cpu")))
        contest = Contest(options, folder)
        target = contest.target()
        say(f"the target is a Recall@20 of {target:.4f}")
        for seed in range(1, options.seeds + 1):
            for name, curve in contest.curves(seed, target).items():
                curves[name].append(curve)
    report = summarise(curves, target)
    if options.figure:
        draw(report, options.figure)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
