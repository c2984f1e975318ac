"""Draws what `benchmarks.bucketing` found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_COLOURS = {
    "full table": "#333333",
    "shared bucket": "#9aa3ad",
    "dropped to unknown": "#c9b458",
    "modulo hash": "#b6533b",
    "hashed buckets": "#6a9fd4",
    "double hashing": "#3b6fb6",
}


def draw(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """One panel for each data set: Recall@20 by the share of the bytes.

    Args:
        found: By data set and way, what the benchmark prints under `data`.
        path: SVG file to be written.
    """
    figure = Figure(figsize=(4.8 * len(found), 3.6), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for panel, (data, ways) in zip(panels, found.items(), strict=True):
        for name, figures in ways.items():
            colour = next(c for way, c in _COLOURS.items() if name.startswith(way))
            recall = figures["recall_at_20"]
            marker = "s" if "1/10" in name else "o"
            panel.errorbar(
                figures["bytes_share"],
                recall["mean"],
                recall["sd"],
                fmt=marker,
                color=colour,
                capsize=3,
                label=name.split(" at ")[0],
            )
        panel.axhline(ways["full table"]["recall_at_20"]["mean"], color="#333333", linewidth=0.8)
        panel.set_xscale("log")
        panel.set_xlabel("bytes of the tables, of one row for every ID")
        panel.set_ylabel("Recall@20")
        panel.set_title(data, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=4, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
