"""The comparison as one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from tasks.evaluation.comparison import ModelComparison
from tasks.evaluation.decision import Decision
from tasks.report.table import basis, reference, rows
from tasks.version import code_version

CAPTIONS = {
    "difference_intervals": "Where an interval does not cross the line at 0, the difference is "
    "more than chance.",
    "recall_curves": "Higher is better; the dotted line is the cut-off that decides.",
    "recall_by_frequency": "Left: items that training hardly saw; right: the head.",
}


def render(
    comparison: ModelComparison,
    figures: Mapping[str, str],
    *,
    long_tail: Mapping[str, tuple[str, bytes]] | None = None,
    decision: Decision | None = None,
    links: Mapping[str, str] | None = None,
) -> str:
    """The page; it needs no network and no other file.

    Args:
        comparison: The comparison.
        figures: SVG texts by the names in `CAPTIONS`.
        long_tail: Picture of each vocabulary by table: file name and content (SVG or PNG).
        decision: What the gate decided, once it has.
        links: Addresses worth a link, by their text.
    """
    others = sorted(comparison.differences, key=lambda name: name != reference(comparison))
    return _template().render(
        comparison=comparison,
        basis=basis(comparison),
        decision=decision,
        tables=[(other, rows(comparison, other)) for other in others]
        or [("", rows(comparison, None))],
        figures=[
            (Markup(figures[name]), caption)
            for name, caption in CAPTIONS.items()
            if name in figures
        ],
        pictures={name: _embedded(*found) for name, found in (long_tail or {}).items()},
        links=links or {},
        code_version=code_version(),
    )


def _embedded(name: str, content: bytes) -> str:
    kind = "image/svg+xml" if name.endswith(".svg") else "image/png"
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("tasks.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("comparison.html.j2")
