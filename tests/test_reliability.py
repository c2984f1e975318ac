"""The page of what a training survives has a line for every cell, as the tests wrote it."""

from __future__ import annotations

import pytest

from tests.reliability import (
    CELLS,
    KILLS,
    PAGE,
    RANKS,
    RESHARDING,
    SHARDINGS,
    Outcome,
    Resharding,
    main,
    marks,
    page_with,
    resharding_table,
    table,
)


def _written(name: str) -> list[str]:
    page = PAGE.read_text("utf-8")
    start, end = marks(name)
    assert page.count(start) == page.count(end) == 1
    written = page.partition(start)[2].partition(end)[0]
    return [line for line in written.splitlines() if line.startswith("| ")][1:]


def test_the_page_has_a_line_for_every_cell() -> None:
    lines = [line.split(" | ")[0] for line in _written(KILLS)]
    assert lines == [f"| {what}" for what in CELLS.values()], "run: make reliability"


def test_the_page_has_every_checkpoint_that_other_ranks_loaded() -> None:
    lines = [line.split(" | ") for line in _written(RESHARDING)]
    wanted = [[f"| `{s}`", str(before)] for s in SHARDINGS for before in RANKS]
    assert [line[:2] for line in lines] == wanted, "run: make reliability"
    assert {" | ".join(line[2:]) for line in lines} == {"equal | equal | equal | equal |"}


def test_outcomes_are_put_into_their_place(tmp_path, monkeypatch) -> None:
    outcomes = {cell: Outcome(cell, (2, 1), 20.0, 41.6, 3, 1.3e-6) for cell in CELLS}
    outcomes["worker"] = Outcome("worker", (2,), 0.0, 0.0, 0, 0.0)
    start, end = marks(KILLS)
    page = page_with(f"before\n{start}\nold\n{end}\nafter\n", KILLS, table(outcomes))
    assert page == f"before\n{start}\n{table(outcomes)}{end}\nafter\n"
    assert "| a rank is killed (SIGKILL) | 2 → 1 | resumes | 20 s | 42 s | 3 | 1e-06 |" in page
    assert "| 2 | goes on | at once | none | 0 | 0 |" in page

    monkeypatch.setenv("TAILTOWER_RELIABILITY", str(tmp_path))
    for cell in ("rank", "worker"):
        outcomes[cell].record()
    with pytest.raises(SystemExit, match="no outcome of: agent, cancel, host"):
        main(tmp_path)


def test_reshardings_are_a_matrix(tmp_path, monkeypatch) -> None:
    cells = [Resharding(s, n, m, 0.0) for s in SHARDINGS for n in RANKS for m in RANKS]
    written = resharding_table([*cells[:-1], Resharding("table_row_wise", 4, 4, 2e-3)])
    assert "| `row_wise` | 3 | equal | equal | equal | equal |" in written
    assert "| `table_row_wise` | 4 | equal | equal | equal | 2e-03 |" in written

    monkeypatch.setenv("TAILTOWER_RELIABILITY", str(tmp_path))
    monkeypatch.setattr("tests.reliability.PAGE", tmp_path / "page.md")
    start, end = marks(RESHARDING)
    (tmp_path / "page.md").write_text(f"{start}\nold\n{end}\n")
    for cell in cells[1:]:
        cell.record()
    with pytest.raises(SystemExit, match=r"no outcome of: data_parallel-1-1$"):
        main(tmp_path, [RESHARDING])
    cells[0].record()
    main(tmp_path, [RESHARDING])
    assert (tmp_path / "page.md").read_text() == f"{start}\n{resharding_table(cells)}{end}\n"
