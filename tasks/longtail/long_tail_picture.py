"""Log-log rank-frequency picture of a vocabulary."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

_BLUE, _RED = "#3b6fb6", "#b6533b"


def draw(health: Mapping[str, Any], title: str) -> bytes:
    """Draws how often the IDs occur by their rank, and sets those apart that own a row.

    Args:
        health: Content of a vocabulary's `health.json`.
        title: Title of the picture.

    Returns:
        PNG, the same bytes for the same input.
    """
    facts, curve = health["facts"], health["curve"]
    figure = Figure(figsize=(6.4, 4.0), dpi=100)
    canvas = FigureCanvasAgg(figure)
    # A fixed frame: measuring the labels to fit it would take most of the time.
    axes = figure.add_axes((0.11, 0.14, 0.86, 0.76))
    axes.loglog(curve["rank"], curve["count"], color=_BLUE, linewidth=1.8)
    own = facts["ids_with_row"]
    if own:
        axes.axvspan(1, own, color=_BLUE, alpha=0.12, linewidth=0)
        axes.axvline(own, color=_RED, linewidth=1.2)
        # On the side of the line where there is room.
        left = own**2 > facts["ids"]
        axes.annotate(
            f"{own:,} IDs with a row: {facts['covered_share']:.0%} of events",
            (own, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if left else 4, -12),
            textcoords="offset points",
            horizontalalignment="right" if left else "left",
            color=_RED,
            fontsize=9,
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=12))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_short))
    axes.set_xlabel("rank of the ID")
    axes.set_ylabel("occurrences in the window")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    stream = io.BytesIO()
    canvas.print_png(stream, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return stream.getvalue()


def _short(value: float, _: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
