"""Draws what `benchmarks.convergence` found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

# Colours that stay apart for colour-blind eyes (Okabe and Ito), each with a marker of its own.
_LOOKS = {
    "ours": ("#0072b2", "o"),
    "traditional": ("#333333", "s"),
    "traditional, no prior": ("#999999", "P"),
    "without logQ": ("#d55e00", "^"),
    "without TF-IDF": ("#009e73", "D"),
    "without mixed negatives": ("#cc79a7", "v"),
}


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Recall against processor seconds of training, every seed a line.

    Args:
        report: What the benchmark prints.
        path: SVG file to be written.
    """
    figure = Figure(figsize=(7.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, found in report["contenders"].items():
        colour, marker = _LOOKS[name]
        for seed, curve in enumerate(found["curves"]):
            seconds, recall = ([point[place] for point in curve] for place in (0, 2))
            axes.plot(
                seconds,
                recall,
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.3,
                label=name if seed == 0 else None,
            )
    axes.axhline(report["target"], color="#666666", linewidth=0.9, linestyle=":")
    axes.annotate(
        f"target {report['target']:.4f}",
        (1, report["target"]),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color="#444444",
    )
    axes.set_xlim(left=0)
    axes.set_xlabel("processor seconds of training, one thread")
    axes.set_ylabel("Recall@20 on held-out pairs")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
