"""The page of what a training survives has a line for every cell, as the tests wrote it."""

from __future__ import annotations

import pytest

from tests.reliability import CELLS, END, PAGE, START, Outcome, main, page_with, table


def test_the_page_has_a_line_for_every_cell() -> None:
    page = PAGE.read_text("utf-8")
    assert page.count(START) == page.count(END) == 1
    written = page.partition(START)[2].partition(END)[0]
    lines = [line.split(" | ")[0] for line in written.splitlines() if line.startswith("| ")]
    assert lines[1:] == [f"| {what}" for what in CELLS.values()], "run: make reliability"


def test_outcomes_are_put_into_their_place(tmp_path, monkeypatch) -> None:
    outcomes = {cell: Outcome(cell, (2, 1), 20.0, 41.6, 3, 1.3e-6) for cell in CELLS}
    outcomes["worker"] = Outcome("worker", (2,), 0.0, 0.0, 0, 0.0)
    page = page_with(f"before\n{START}\nold\n{END}\nafter\n", outcomes)
    assert page == f"before\n{START}\n{table(outcomes)}{END}\nafter\n"
    assert "| a rank is killed (SIGKILL) | 2 → 1 | resumes | 20 s | 42 s | 3 | 1e-06 |" in page
    assert "| 2 | goes on | at once | none | 0 | 0 |" in page

    monkeypatch.setenv("TAILTOWER_RELIABILITY", str(tmp_path))
    for cell in ("rank", "worker"):
        outcomes[cell].record()
    with pytest.raises(SystemExit, match="no outcome of: agent, cancel, host"):
        main(tmp_path)
