"""Draws what `benchmarks.bucketing` found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_LOOKS = (("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "D"), ("#cc79a7", "^"))
"""Colours that stay apart for colour-blind eyes (Okabe and Ito), each with a marker of its own."""
_FULL = "full table"
_LIMIT = 99
"""Per cent of the full table's recall that a way is to keep."""


def draw(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """One panel for each data set: what each way keeps of the full table's recall.

    Args:
        found: By data set, what the benchmark prints under `data`.
        path: SVG file to be written.
    """
    names = [name for of_data in found.values() for name in of_data["ways"] if name != _FULL]
    ways = list(dict.fromkeys(name.rpartition(" at ")[0] for name in names))
    shares = sorted({float(name.rpartition(" at ")[2]) for name in names})
    size = (2.2 + 2.7 * len(found), 1.5 + 0.3 * len(ways))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for panel, (data, of_data) in zip(panels, found.items(), strict=True):
        full = of_data["ways"][_FULL]["recall_at_20"]["mean"]
        panel.axvline(100, color="#333333", linewidth=0.9)
        panel.axvline(_LIMIT, color="#888888", linewidth=0.9, linestyle=":")
        for share, (colour, marker) in zip(shares, _LOOKS, strict=False):
            rows = [
                (place, of_data["ways"][name])
                for place, way in enumerate(ways)
                if (name := f"{way} at {share:g}") in of_data["ways"]
            ]
            panel.errorbar(
                [100 * figures["kept"] for _, figures in rows],
                [place for place, _ in rows],
                xerr=[100 * figures["recall_at_20"]["sd"] / full for _, figures in rows],
                color=colour,
                fmt=marker,
                markersize=6,
                capsize=3,
                label=f"{100 * share:g} % of the bytes",
            )
        panel.set_yticks(range(len(ways)), ways)
        panel.set_ylim(len(ways) - 0.5, -0.5)
        panel.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.tick_params(axis="y", length=0)
        panel.set_title(f"{data}: full table {full:.4f}", fontsize=10)
        panel.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel("Recall@20, % of the full table's; dotted: 99 %", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=4, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
