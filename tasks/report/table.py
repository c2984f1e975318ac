"""The comparison as rows of text, shared by the terminal, Markdown and HTML."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluation.comparison import Difference, ModelComparison

NOTHING = "–"


@dataclass(frozen=True)
class Row:
    """One metric of a comparison.

    Attributes:
        metric: Name of the metric.
        values: Mean of each model, in the order of the comparison's models.
        difference: Candidate minus the model that the table compares with.
        interval: Its interval.
        verdict: What the interval says.
    """

    metric: str
    values: tuple[str, ...]
    difference: str
    interval: str
    verdict: str


def reference(comparison: ModelComparison) -> str | None:
    """The model whose differences the table shows: the champion, else the first other one."""
    names = list(comparison.differences)
    return "champion" if "champion" in names else names[0] if names else None


def rows(comparison: ModelComparison, against: str | None = None) -> list[Row]:
    """Rows of the table, one for each headline metric.

    Args:
        comparison: The comparison.
        against: Model that the differences are shown against; by default `reference`.
    """
    other = against or reference(comparison)
    differences = comparison.differences.get(other, {}) if other else {}
    return [
        Row(
            metric=metric,
            values=tuple(_number(model.metrics.get(metric)) for model in comparison.models),
            **_difference(differences.get(metric)),
        )
        for metric in comparison.headline
    ]


def markdown(comparison: ModelComparison) -> str:
    """The table in Markdown, one for each model that the candidate is compared with."""
    parts = []
    for other in comparison.differences or {"": {}}:
        names = [model.name for model in comparison.models]
        heads = [
            "metric",
            *names,
            f"minus {other}" if other else "difference",
            "interval",
            "verdict",
        ]
        lines = [" | ".join(heads), " | ".join(["---"] + ["--:"] * (len(heads) - 2) + ["---"])]
        for row in rows(comparison, other or None):
            cells = [f"`{row.metric}`", *row.values, row.difference, row.interval, row.verdict]
            lines.append(" | ".join(cells))
        parts.append("\n".join(f"| {line} |" for line in lines))
    return "\n\n".join(parts)


def basis(comparison: ModelComparison) -> str:
    """What the numbers rest on, in one sentence."""
    days = comparison.test_days
    when = str(days[0]) if len(days) == 1 else f"{days[0]} to {days[-1]}"
    how = (
        "the same users, resampled together"
        if comparison.paired
        else "different users, resampled apart (not paired: the test sets differ)"
    )
    return (
        f"{comparison.users:,} test users of {when}, {comparison.items:,} items; "
        f"{comparison.confidence:.0%} bootstrap intervals from {comparison.samples:,} resamples "
        f"over {how}."
    )


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4f}"


def _difference(found: Difference | None) -> dict[str, str]:
    if found is None:
        return {"difference": NOTHING, "interval": NOTHING, "verdict": NOTHING}
    return {
        "difference": f"{found.difference:+.4f}",
        "interval": f"[{found.lower:+.4f}, {found.upper:+.4f}]",
        "verdict": found.verdict,
    }
