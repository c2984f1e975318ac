"""The table in `docs/reliability.md`, written from what the tests saw.

`make reliability` runs the tests with `TAILTOWER_RELIABILITY` naming a folder, in which each cell
leaves its outcome, and then `python -m tests.reliability FOLDER`, which puts them into the page.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
START, END = "<!-- cells: start -->", "<!-- cells: end -->"
FOLDER = "TAILTOWER_RELIABILITY"

CELLS = {
    "rank": "a rank is killed (SIGKILL)",
    "agent": "the agent of a node is killed (SIGKILL)",
    "machine": "all processes of a host are killed (SIGKILL), and none comes back",
    "host": "a host drops out of the network; its processes live on",
    "worker": "the Dask worker of a node is killed (SIGKILL)",
    "scheduler": "the Dask scheduler is killed (SIGKILL)",
    "supervisor": "the job's supervisor is killed (SIGKILL), and the step is tried again",
    "late": "a host joins later",
    "slow": "a host stands still for a third of the detection limit",
    "cancel": "the job is cancelled, and submitted again",
}
"""What is done to a training, by the name of the cell."""


@dataclass(frozen=True)
class Outcome:
    """What a cell's test saw; it had already checked rows, weights and processes.

    Attributes:
        cell: Name of the cell.
        ranks: Number of ranks, one entry for each time that they were arranged.
        limit: Seconds until the loss is noticed at the latest; 0 when it shows at once.
        pause: Seconds from the fault to the next step.
        redone: Steps that were taken again.
        difference: Largest difference of a weight from an undisturbed training's.
    """

    cell: str
    ranks: tuple[int, ...]
    limit: float
    pause: float
    redone: int
    difference: float

    def record(self) -> None:
        """Leaves the outcome for the page, when somebody collects them."""
        if folder := os.environ.get(FOLDER):
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{self.cell}.json").write_text(json.dumps(asdict(self)))

    def line(self) -> str:
        """Its line of the table."""
        cells = (
            CELLS[self.cell],
            " → ".join(map(str, self.ranks)),
            "goes on" if len(self.ranks) == 1 else "resumes",
            f"{self.limit:.0f} s" if self.limit else "at once",
            f"{self.pause:.0f} s" if self.pause else "none",
            str(self.redone),
            f"{self.difference:.0e}" if self.difference else "0",
        )
        return f"| {' | '.join(cells)} |"


def table(outcomes: dict[str, Outcome]) -> str:
    """The outcomes as Markdown, in the order of the cells."""
    lines = [
        "| What happens | Ranks | Training | Noticed after | Pause | Steps redone | Difference |",
        "|---|---|---|---|--:|--:|--:|",
        *(outcomes[cell].line() for cell in CELLS),
    ]
    return "\n".join([*lines, ""])


def page_with(page: str, outcomes: dict[str, Outcome]) -> str:
    """The page with the table in its place."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table(outcomes)}{END}{after}"


def main(folder: Path) -> None:
    """Puts the outcomes of a folder into the page.

    Raises:
        SystemExit: A cell has no outcome: its test failed, or was skipped.
    """
    found = {}
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text())
        found[path.stem] = Outcome(**{**content, "ranks": tuple(content["ranks"])})
    missing = CELLS.keys() - found.keys()
    if missing:
        raise SystemExit(f"no outcome of: {', '.join(sorted(missing))}")
    PAGE.write_text(page_with(PAGE.read_text("utf-8"), found), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
