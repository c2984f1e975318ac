"""Figures of a comparison, as SVG texts.

Colours are those of Okabe and Ito, "Color Universal Design" (2008), told apart by people with any
kind of colour vision; every model also has its own marker, so that a grey print works too.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from tasks.evaluation.comparison import ModelComparison, ModelSummary, cutoff

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = {
    "candidate": ("#0072B2", "o", "-"),
    "champion": ("#D55E00", "s", "-"),
    "popularity": ("#767676", "^", "--"),
    "traditional": ("#009E73", "D", "--"),
}
_MORE_STYLES = (("#CC79A7", "v", "-."), ("#8A6D00", "P", "-."), ("#56B4E9", "X", "-."))
_SIZE = (7.2, 3.8)


def draw(comparison: ModelComparison) -> dict[str, str]:
    """All figures that the comparison has data for, by name."""
    drawn = {
        "difference_intervals": difference_intervals(comparison),
        "recall_curves": recall_curves(comparison),
        "recall_by_frequency": recall_by_frequency(comparison),
    }
    return {name: svg for name, svg in drawn.items() if svg is not None}


def recall_curves(comparison: ModelComparison) -> str | None:
    """Recall against the cut-off; None when no model has a curve."""
    models = [model for model in comparison.models if model.curve]
    if not models:
        return None
    figure, axes = _figure("Recall by number of recommendations")
    for number, model in enumerate(models):
        colour, marker, line = _style(model.name, number)
        ks = sorted(model.curve)
        axes.plot(
            ks,
            [model.curve[k] for k in ks],
            color=colour,
            marker=marker,
            linestyle=line,
            markersize=4,
            label=model.name,
        )
    axes.axvline(cutoff(comparison.metric), color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    ticks = [k for k in (1, 2, 5, 10, 20, 50, 100, 200) if k <= max(models[0].curve)]
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.minorticks_off()
    axes.set_xlabel("recommendations shown (k)")
    axes.set_ylabel("mean recall at k")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return _svg(figure)


def recall_by_frequency(comparison: ModelComparison) -> str | None:
    """Share of targets found, by how often the target was trained on; None without data."""
    models = [model for model in comparison.models if model.frequency]
    if not models:
        return None
    bins = [n for n, found in enumerate(models[0].frequency) if found["targets"] > 0]
    if not bins:
        return None
    k = cutoff(comparison.metric)
    figure, axes = _figure(f"Targets found in the top {k}, by how often the item was trained on")
    for number, model in enumerate(models):
        colour, marker, line = _style(model.name, number)
        found = [model.frequency[n] for n in bins]
        # A model of another day may have no target where the first one has.
        shares = [b["hits"] / b["targets"] if b["targets"] else float("nan") for b in found]
        axes.plot(
            range(len(bins)),
            shares,
            color=colour,
            marker=marker,
            linestyle=line,
            markersize=4,
            label=model.name,
        )
    labels = [f"{_bin(models[0], n)}\n{models[0].frequency[n]['targets']:,}" for n in bins]
    axes.set_xticks(range(len(bins)), labels, fontsize=8)
    axes.set_xlabel("train interactions of the item (second line: targets)")
    axes.set_ylabel(f"share of targets in the top {k}")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return _svg(figure)


def difference_intervals(comparison: ModelComparison) -> str | None:
    """Interval of every difference of the headline metrics; None without any."""
    others = list(comparison.differences)
    metrics = [
        name
        for name in comparison.headline
        if any(name in comparison.differences[other] for other in others)
    ]
    if not metrics:
        return None
    height = 1.2 + 0.28 * len(metrics) * max(1, len(others) * 0.7)
    figure, axes = _figure(
        f"Candidate minus the other model, {comparison.confidence:.0%} intervals", (7.2, height)
    )
    for number, other in enumerate(others):
        colour, marker, _ = _style(other, number + 1)
        for row, metric in enumerate(metrics):
            found = comparison.differences[other].get(metric)
            if found is None:
                continue
            place = row + (number - (len(others) - 1) / 2) * 0.24
            axes.plot([found.lower, found.upper], [place, place], color=colour, linewidth=1.6)
            axes.plot(
                found.difference,
                place,
                color=colour,
                marker=marker,
                markersize=5,
                linestyle="",
                label=f"against {other}" if row == 0 else None,
            )
    axes.axvline(0, color="#333333", linewidth=0.8)
    axes.set_yticks(range(len(metrics)), metrics, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("difference (right of 0: the candidate is better)")
    axes.legend(frameon=False, loc="best", fontsize=8)
    return _svg(figure)


def _figure(title: str, size: tuple[float, float] = _SIZE) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11, loc="left")
    axes.grid(True, color="#e5e5e5", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    import matplotlib as mpl

    stream = io.StringIO()
    # Text stays text: small, selectable and readable aloud. The salt makes the file reproducible,
    # and different for each figure, because a page's figures share one space of element ids.
    salt = figure.axes[0].get_title(loc="left")
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _style(name: str, number: int) -> tuple[str, str, str]:
    return _STYLES.get(name, _MORE_STYLES[number % len(_MORE_STYLES)])


def _bin(model: ModelSummary, n: int) -> str:
    start = model.frequency[n]["from"]
    if n + 1 == len(model.frequency):
        return f"{start}+"
    end = model.frequency[n + 1]["from"] - 1
    return str(start) if end == start else f"{start}–{end}"
