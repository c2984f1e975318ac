"""Thirty days of retraining with and without decay of Adagrad's accumulators.

    python -m benchmarks.accumulators [--days 30] [--decay 0.5] [--figure FILE.svg]

The product's tables and optimizers follow targets that move every day, as tastes do: each step
shows them some long-tailed rows with noisy gradients of the distance to their targets. Weights and
accumulators live on from day to day, as in a model that is retrained daily from the one before.
Reported are the norm of the accumulators at the end of each day, and how much of the distance that
a day's move opened is closed by its end, over the rows that the day touched. Without decay every
day learns less than the one before; with it days settle at a level. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from benchmarks.synthetic_events import zipf_ranks
from models.config import EmbeddingTableSettings, OptimizerSettings
from models.embedding_tables import EmbeddingTables
from models.optimization import Optimization
from models.precision import LossScale

ROWS, DIM = 2000, 16
STEPS, TOUCHED = 150, 256
MOVE, NOISE = 0.5, 0.3
CPU = torch.device("cpu")


def simulate(days: int, decay: float) -> dict[str, list[float]]:
    """One model's days."""
    settings = OptimizerSettings(learning_rate=0.01, sparse_lr_scale=10.0, accumulator_decay=decay)
    tables = EmbeddingTables(
        {"t": EmbeddingTableSettings(dim=DIM)}, {"t": ROWS + 1}, settings, seed=1, device=CPU
    )
    optimization = Optimization(settings, nn.Linear(1, 1), tables, LossScale(False, CPU))
    rng = np.random.default_rng(3)
    generator = torch.Generator().manual_seed(3)
    target = torch.zeros(ROWS + 1, DIM)
    found: dict[str, list[float]] = {"accumulator_norm": [], "closed": []}
    step = 0
    for day in range(days):
        if day:
            optimization.decay_accumulators()
        before = _rows(tables)
        target = target + MOVE * torch.randn(target.shape, generator=generator)
        seen = torch.zeros(ROWS + 1, dtype=torch.bool)
        for _ in range(STEPS):
            rows = torch.from_numpy(np.unique(zipf_ranks(rng, TOUCHED, ROWS, 1.05)))
            seen[rows] = True
            optimization.begin(step)
            fetched = tables.fetch({"t": rows})
            noise = NOISE * torch.randn(len(rows), DIM, generator=generator)
            leaf = fetched.rows["t"]
            leaf.grad = leaf.detach() - target[rows] + noise
            optimization.step(fetched)
            step += 1
        opened = (before - target)[seen].norm()
        closed = 1.0 - float((_rows(tables) - target)[seen].norm() / opened)
        found["accumulator_norm"].append(round(optimization.accumulator_norm(), 4))
        found["closed"].append(round(closed, 4))
    return found


def _rows(tables: EmbeddingTables) -> Tensor:
    ((_, weight),) = tables.full_tables()
    return weight.clone()


def draw(report: dict[str, Any], path: Path) -> None:
    """Both curves, one line for each model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name, days in report["days"].items():
        for axis, key in zip(axes, ("accumulator_norm", "closed"), strict=True):
            axis.plot(range(1, len(days[key]) + 1), days[key], label=name)
    for axis, title in zip(
        axes, ("Norm of the accumulators", "Part of a day's distance that it closes"), strict=True
    ):
        axis.set_title(title)
        axis.set_xlabel("day")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path)
    plt.close(figure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accumulators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--decay", type=float, default=0.5)
    parser.add_argument("--figure", type=Path, help="draw the result into this SVG file")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        report: dict[str, Any] = {
            "days": {
                "no decay": simulate(options.days, 1.0),
                f"decay {options.decay:g} a day": simulate(options.days, options.decay),
            }
        }
    finally:
        dist.destroy_process_group()
    for key, name in zip(("without", "with"), report["days"], strict=True):
        days = report["days"][name]
        last = days["closed"][-5:]
        report[f"closed_{key}_decay"] = round(sum(last) / len(last), 4)
        report[f"norm_growth_{key}_decay"] = round(
            days["accumulator_norm"][-1] / days["accumulator_norm"][len(last) - 1], 3
        )
    if options.figure:
        options.figure.parent.mkdir(parents=True, exist_ok=True)
        draw(report, options.figure)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
