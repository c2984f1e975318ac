"""Draws what `benchmarks.examples` found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_BLUE, _GREY = "#3b6fb6", "#9aa3ad"
_LOOK_UPS = {
    "codes": "encoder, to codes",
    "join": "Polars join, to rows",
    "join_codes": "Polars join, to codes",
}


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draws the seconds of the whole job and the IDs per second of the encode step.

    Args:
        report: What the benchmark prints.
        path: SVG file to be written.
    """
    figure = Figure(figsize=(9.2, 3.2), layout="constrained")
    whole, encode = figure.subplots(1, 2)
    _bars(
        whole,
        ["Tailtower", "Polars"],
        [report[name]["seconds"] for name in ("tailtower", "polars")],
        "%.1f s",
    )
    whole.set_xlabel("seconds")
    whole.set_title(
        f"{report['events'] / 1e6:.0f} M events, histories of {report['history']}", fontsize=10
    )
    speeds = report["encode"]
    _bars(
        encode,
        [f"{kind}: {_LOOK_UPS[name]}" for kind in speeds for name in _LOOK_UPS],
        [speeds[kind][name]["ids_per_second"] / 1e6 for kind in speeds for name in _LOOK_UPS],
        "%.0f",
    )
    encode.set_xlabel("million IDs per second, one thread")
    encode.set_title("Encoding alone", fontsize=10)
    for axes in (whole, encode):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _bars(axes: Any, names: list[str], values: list[float], label: str) -> None:
    ours = [name.startswith("Tailtower") or "encoder" in name for name in names]
    bars = axes.barh(names, values, color=[_BLUE if mine else _GREY for mine in ours])
    axes.bar_label(bars, fmt=label, padding=3)
    axes.invert_yaxis()
