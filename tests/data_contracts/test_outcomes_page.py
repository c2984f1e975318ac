"""The page of outcomes says what the tests check; a page that went stale would promise the past."""

from __future__ import annotations

from tests.data_contracts.outcomes import INPUTS
from tests.data_contracts.outcomes_page import END, PAGE, START, page_with_table, table


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(START) == page.count(END) == 1
    assert page == page_with_table(page), (
        "run: python -m tests.data_contracts.outcomes_page --update"
    )


def test_every_input_is_a_line_of_the_table() -> None:
    lines = [line for line in table().splitlines() if line.startswith("| ")]
    headings = sum(line.startswith("| Input ") for line in lines)
    assert len(lines) - headings == len(INPUTS)
