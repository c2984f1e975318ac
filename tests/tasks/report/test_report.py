"""Protects: the report is one file that works offline, with real figures and readable tables."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from rich.console import Console

from tasks.config import GateSettings
from tasks.evaluation.comparison import ModelComparison
from tasks.evaluation.decision import ServingParity, decide
from tasks.report.figures import draw
from tasks.report.page import render
from tasks.report.table import markdown, rows
from tasks.report.terminal import show
from tests.tasks.evaluation.samples import comparison, difference, model


@pytest.fixture
def compared() -> ModelComparison:
    return comparison(
        model("champion", recall=0.19, version="3"),
        champion=difference(0.2, 0.19, -0.01, 0.03),
        popularity=difference(0.2, 0.1, 0.06, 0.14),
    )


class _Addresses(HTMLParser):
    """Collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value:
                self.found.append(value)


def test_the_page_needs_nothing_but_itself(compared: ModelComparison) -> None:
    page = render(compared, draw(compared), long_tail={"item": ("item.png", b"\x89PNG")})
    parser = _Addresses()
    parser.feed(page)
    outside = [a for a in parser.found if not a.startswith(("#", "data:"))]
    assert outside == []
    assert "@import" not in page
    assert "url(http" not in page
    assert "data:image/png;base64,iVBORw==" in page


def test_figures_are_valid_and_named(compared: ModelComparison) -> None:
    figures = draw(compared)
    assert set(figures) == {"difference_intervals", "recall_curves", "recall_by_frequency"}
    for svg in figures.values():
        texts = [e.text for e in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
        assert any(t and ("candidate" in t or "champion" in t) for t in texts)
    assert draw(compared) == figures  # reproducible
    ids = [set(re.findall(r'id="(m[0-9a-f]{10})"', svg)) for svg in figures.values()]
    assert not ids[0] & ids[1]
    assert not ids[1] & ids[2]


def test_figures_without_data_are_left_out(compared: ModelComparison) -> None:
    bare = tuple(m.model_copy(update={"curve": {}, "frequency": ()}) for m in compared.models)
    empty = compared.model_copy(update={"models": bare, "differences": {}})
    assert draw(empty) == {}
    assert "<figure>" not in render(empty, {})


def test_the_page_states_the_decision_and_every_condition(compared: ModelComparison) -> None:
    decision = decide(compared, GateSettings(), ServingParity(users=4, different=0))
    page = render(compared, {}, decision=decision)
    assert decision.outcome == "rejected"
    assert 'class="decision rejected"' in page
    for check in decision.checks:
        assert check.text.replace("'", "&#39;") in page


def test_names_from_data_are_escaped() -> None:
    compared = comparison(
        model("<script>alert(1)</script>", recall=0.1),
        **{"<script>alert(1)</script>": difference(0.2, 0.1, 0.0, 0.1)},
    )
    page = render(compared, draw(compared))
    assert "<script>" not in page


def test_rows_show_four_digits_signs_and_nothing_for_what_is_unknown(
    compared: ModelComparison,
) -> None:
    first, *others = rows(compared, "champion")
    assert (first.metric, first.values) == ("recall_at_20", ("0.2000", "0.1000", "0.1900"))
    assert (first.difference, first.interval) == ("+0.0100", "[-0.0100, +0.0300]")
    assert first.verdict == "unclear"
    coverage = next(row for row in others if row.metric == "coverage_at_20")
    assert (coverage.difference, coverage.verdict) == ("–", "–")


def test_markdown_has_a_table_for_each_opponent(compared: ModelComparison) -> None:
    text = markdown(compared)
    assert text.count("| metric |") == 2
    assert "minus champion" in text
    assert "minus popularity" in text
    widths = {line.count("|") for line in text.splitlines() if line}
    assert len(widths) == 1


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_table_cuts_no_number(compared: ModelComparison, width: int) -> None:
    out = io.StringIO()
    show(compared, Console(file=out, width=width))
    text = out.getvalue()
    assert "0.2000" in text
    assert "[-0.0100, +0.0300]" in text
    assert "unclear" in text
    assert "…" not in text
    assert "against popularity: recall_at_20 +0.1000 [+0.0600, +0.1400] better" in text
    assert ("popularity" in text.splitlines()[2]) == (width == 120)


def test_the_page_says_which_run_a_training_continued() -> None:
    continued = comparison(model("champion", recall=0.19, continues="2026-01-02-feed"))
    page = render(continued, {}, long_tail={})
    assert page.count("continues 2026-01-02-feed") == 1
    assert "continues" not in render(comparison(), {}, long_tail={})
