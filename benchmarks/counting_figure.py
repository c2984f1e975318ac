"""Draws what `benchmarks.counting` found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_NAMES = {
    "tailtower": "Tailtower",
    "duckdb": "DuckDB",
    "polars": "Polars",
    "dask_naive": "Dask value_counts",
}
_BLUE, _GREY, _RED = "#3b6fb6", "#9aa3ad", "#b6533b"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draws the seconds of each contender and, when measured, the growth.

    Args:
        report: What the benchmark prints.
        path: SVG file to be written.
    """
    panels = [draw_ for key, draw_ in (("tailtower", _bars), ("growth", _growth)) if key in report]
    if not panels:
        return
    figure = Figure(figsize=(4.6 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, place in zip(panels, axes, strict=True):
        panel(report, place)
        place.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _bars(report: Mapping[str, Any], axes: Any) -> None:
    present = [name for name in _NAMES if name in report]
    seconds = [report[name]["seconds"] for name in present]
    colours = [_BLUE if name == "tailtower" else _GREY for name in present]
    bars = axes.barh([_NAMES[name] for name in present], seconds, color=colours)
    axes.bar_label(bars, fmt="%.1f s", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(f"Counting {report['events'] / 1e6:.0f} M events, two columns", fontsize=10)


def _growth(report: Mapping[str, Any], axes: Any) -> None:
    sizes = [int(size) / 1e6 for size in report["growth"]]
    found = list(report["growth"].values())
    axes.plot(sizes, [one["seconds"] for one in found], marker="o", color=_BLUE)
    axes.set_xlabel("million events")
    axes.set_ylabel("seconds", color=_BLUE)
    axes.set_ylim(0)
    memory = axes.twinx()
    memory.plot(sizes, [one["peak_mib"] for one in found], marker="s", color=_RED, linestyle="--")
    memory.set_ylabel("peak memory of all processes, MiB", color=_RED)
    memory.set_ylim(0)
    axes.set_title("Growth", fontsize=10)
