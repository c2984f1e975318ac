"""The table of outcomes in `docs/data_contracts.md`, made from the tests' own list.

`python -m tests.data_contracts.outcomes_page --update` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.data_contracts.outcomes import INPUTS, Input

PAGE = Path(__file__).parents[2] / "docs" / "data_contracts.md"
START, END = "<!-- outcomes: start -->", "<!-- outcomes: end -->"


def table() -> str:
    """The list as Markdown, a table for each group."""
    lines: list[str] = []
    group = ""
    for entry in INPUTS:
        if entry.group != group:
            group = entry.group
            lines += ["", f"**{group}**", "", "| Input | Finding | Rows | The run |"]
            lines.append("|---|---|--:|---|")
        lines.append(f"| {' | '.join(_cells(entry))} |")
    return "\n".join([*lines[1:], ""])


def _cells(entry: Input) -> tuple[str, str, str, str]:
    where = " (items)" if entry.dataset == "items" else ""
    findings = [
        f"{severity}: {rule}" + (f" `{column}`" if column else "")
        for rule, column, severity, _ in entry.broken
    ]
    rows = [f"{count:,}" if count else "–" for *_, count in entry.broken]
    run = f"{_run(entry)} {entry.remark}".strip()
    return entry.name + where, "<br>".join(findings) or "none", "<br>".join(rows), run


def _run(entry: Input) -> str:
    if entry.waits:
        return "waits, and asks again."
    if entry.refused:
        return f"stops: {entry.refused[1]}…"
    if entry.blocked:
        return "stops, without a retry."
    return "goes on, and shows the warning." if entry.broken else "goes on."


def page_with_table(page: str) -> str:
    """The page with the table in its place."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table()}{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python -m tests.data_contracts.outcomes_page --update")
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
