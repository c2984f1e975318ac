"""Draws what `benchmarks.bucketing` found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

# Colours that stay apart for colour-blind eyes (Okabe and Ito), each with a marker of its own.
_LOOKS = {
    "shared bucket": ("#777777", "o"),
    "dropped to unknown": ("#e69f00", "v"),
    "modulo hash": ("#d55e00", "X"),
    "hashed buckets, 1/2": ("#56b4e9", "s"),
    "hashed buckets, 1/10": ("#0072b2", "s"),
    "double hashing, 1/2": ("#009e73", "D"),
    "double hashing, 1/10": ("#cc79a7", "D"),
    "1/10, fp16": ("#0072b2", "^"),
    "1/10, fp16, 32 wide": ("#000000", "P"),
    "neighbour + 1/4, fp16, 32 wide": ("#f0c419", "*"),
}
_FULL = "full table"


def draw(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """One panel for each data set: what is kept of the full table's recall, by share of the bytes.

    Args:
        found: By data set and way, what the benchmark prints under `data`.
        path: SVG file to be written.
    """
    figure = Figure(figsize=(4.1 * len(found), 4.4), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for panel, (data, of_data) in zip(panels, found.items(), strict=True):
        ways = of_data["ways"]
        full = ways[_FULL]["recall_at_20"]
        lines = defaultdict(list)
        for name, figures in ways.items():
            if name != _FULL:
                recall = figures["recall_at_20"]
                lines[name.rsplit(" at ", 1)[0]].append(
                    (
                        100 * figures["bytes_share"],
                        100 * recall["mean"] / full["mean"],
                        100 * recall["sd"] / full["mean"],
                    )
                )
        for name, points in lines.items():
            colour, marker = _LOOKS[name]
            share, kept, spread = zip(*sorted(points), strict=True)
            panel.errorbar(
                share,
                kept,
                spread,
                color=colour,
                marker=marker,
                markersize=6,
                linewidth=1.3,
                capsize=3,
                label=name,
            )
        panel.axhspan(99, 101, color="#dddddd", alpha=0.6, linewidth=0)
        panel.axhline(100, color="#333333", linewidth=0.9)
        panel.set_xscale("log")
        ticks = sorted({round(point[0]) for points in lines.values() for point in points})
        panel.set_xticks(ticks, [f"{tick} %" for tick in ticks])
        panel.minorticks_off()
        panel.set_xlabel("bytes of the table, of a row for every item")
        panel.set_title(f"{data}: full table {full['mean']:.4f}", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("Recall@20, % of the full table's")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
