"""The tables in `docs/reliability.md`, written from what the tests saw.

`make reliability` runs the tests with `TAILTOWER_RELIABILITY` naming a folder, in which each cell
leaves its outcome, and then `python -m tests.reliability FOLDER`, which puts them into the page;
`python -m tests.reliability FOLDER kills` (or `resharding`) writes that table alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
KILLS, RESHARDING = "kills", "resharding"
"""Names of the tables."""
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


SHARDINGS = ("data_parallel", "table_wise", "row_wise", "column_wise", "table_row_wise")
"""Ways to spread a table."""
RANKS = (1, 2, 3, 4)
"""Numbers of ranks that write, and load, a checkpoint."""


@dataclass(frozen=True)
class Resharding:
    """A checkpoint that some ranks wrote and others loaded.

    Attributes:
        sharding: How every table was spread.
        before: Number of ranks that wrote it.
        after: Number of ranks that loaded it.
        difference: Largest difference of a weight, or a number of the optimizer's state.
    """

    sharding: str
    before: int
    after: int
    difference: float

    def record(self) -> None:
        """Leaves the outcome for the page, when somebody collects them."""
        if folder := os.environ.get(FOLDER):
            place = Path(folder) / RESHARDING
            place.mkdir(parents=True, exist_ok=True)
            name = f"{self.sharding}-{self.before}-{self.after}.json"
            (place / name).write_text(json.dumps(asdict(self)))


def table(outcomes: dict[str, Outcome]) -> str:
    """The outcomes as Markdown, in the order of the cells."""
    lines = [
        "| What happens | Ranks | Training | Noticed after | Pause | Steps redone | Difference |",
        "|---|---|---|---|--:|--:|--:|",
        *(outcomes[cell].line() for cell in CELLS),
    ]
    return "\n".join([*lines, ""])


def resharding_table(outcomes: Collection[Resharding]) -> str:
    """The outcomes as Markdown: a line for each sharding and number of ranks that wrote."""
    found = {(o.sharding, o.before, o.after): o.difference for o in outcomes}

    def cell(difference: float) -> str:
        return f"{difference:.0e}" if difference else "equal"

    lines = [
        f"| Tables | Written by | {' | '.join(f'Loaded by {ranks}' for ranks in RANKS)} |",
        f"|---|--:|{'---|' * len(RANKS)}",
        *(
            f"| `{s}` | {before} | "
            + " | ".join(cell(found[s, before, after]) for after in RANKS)
            + " |"
            for s in SHARDINGS
            for before in RANKS
        ),
    ]
    return "\n".join([*lines, ""])


def page_with(page: str, name: str, text: str) -> str:
    """The page with a table in its place."""
    start, end = marks(name)
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}\n{text}{end}{after}"


def marks(name: str) -> tuple[str, str]:
    """What stands before and after a table in the page."""
    return f"<!-- {name}: start -->", f"<!-- {name}: end -->"


def _kills(folder: Path) -> str:
    found = {}
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text())
        found[path.stem] = Outcome(**{**content, "ranks": tuple(content["ranks"])})
    _require(CELLS.keys() - found.keys())
    return table(found)


def _reshardings(folder: Path) -> str:
    paths = (folder / RESHARDING).glob("*.json")
    found = [Resharding(**json.loads(path.read_text())) for path in paths]
    wanted = {f"{s}-{n}-{m}" for s in SHARDINGS for n in RANKS for m in RANKS}
    _require(wanted - {f"{o.sharding}-{o.before}-{o.after}" for o in found})
    return resharding_table(found)


def _require(missing: Collection[str]) -> None:
    if missing:
        raise SystemExit(f"no outcome of: {', '.join(sorted(missing))}")


TABLES: dict[str, Callable[[Path], str]] = {KILLS: _kills, RESHARDING: _reshardings}


def main(folder: Path, names: Collection[str] = tuple(TABLES)) -> None:
    """Puts the outcomes of a folder into the page.

    Args:
        folder: The folder.
        names: Which tables.

    Raises:
        SystemExit: A cell has no outcome: its test failed, or was skipped.
    """
    page = PAGE.read_text("utf-8")
    for name in names:
        page = page_with(page, name, TABLES[name](folder))
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or tuple(TABLES))
