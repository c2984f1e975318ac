"""Draws what `benchmarks.validation` found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_BLUE, _GREY, _RED = "#3b6fb6", "#9aa3ad", "#b6533b"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draws time and memory by size and, when measured, the share of a daily run.

    Args:
        report: What the benchmark prints.
        path: SVG file to be written.
    """
    panels = [_sizes, *([_share] if "daily_run" in report else [])]
    figure = Figure(figsize=(4.6 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, place in zip(panels, axes, strict=True):
        panel(report, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _sizes(report: Mapping[str, Any], axes: Any) -> None:
    found = report["ids"][next(iter(report["ids"]))]
    millions = [one["events"] / 1e6 for one in found]
    goal = report["goals"]["cpu_seconds_per_million"]["at_most"]
    axes.plot(millions, [one["cpu_seconds_per_million"] for one in found], "o-", color=_BLUE)
    axes.axhline(goal, color=_BLUE, linestyle=":", label=f"goal: {goal} s")
    axes.set_xlabel("million events")
    axes.set_ylabel("CPU seconds a million", color=_BLUE)
    axes.set_ylim(0)
    axes.legend(frameon=False, fontsize=8)
    memory = axes.twinx()
    memory.plot(millions, [one["peak_mib"] for one in found], "s--", color=_RED)
    memory.set_ylabel("peak memory, MiB", color=_RED)
    memory.set_ylim(0)
    for place in (axes, memory):
        place.spines["top"].set_visible(False)
    axes.set_title("Checking a day", fontsize=10)


def _share(report: Mapping[str, Any], axes: Any) -> None:
    runs = report["daily_run"]
    left = [0.0, 0.0]
    names = ("all days new", "one day new")
    steps = list(runs["first"]["seconds"])
    for number, step in enumerate(steps):
        seconds = [runs[run]["seconds"][step] for run in ("first", "daily")]
        shade = 0.35 + 0.5 * number / len(steps)
        colour = _BLUE if step == "validate" else str(round(shade, 2))
        axes.barh(names, seconds, left=left, color=colour, label=step)
        left = [a + b for a, b in zip(left, seconds, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("seconds, before the training")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"A run on {runs['rows'] / 1e6:g} M rows", fontsize=10)
