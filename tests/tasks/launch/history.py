"""What the ranks of a job wrote down: who trained when on which rows, and which of it counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROWS = "rows"
WORLD = "world"


@dataclass
class World:
    """Ranks that trained together, from one rendezvous to the next.

    Attributes:
        size: Number of ranks.
        steps: By rank and step, the entry that the rank wrote.
    """

    size: int
    steps: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """Step that it began with."""
        return min(min(taken) for taken in self.steps.values())

    @property
    def last(self) -> int:
        """Last step that it began."""
        return max(max(taken) for taken in self.steps.values())

    @property
    def began(self) -> float:
        """When it began its first step, in seconds since 1970."""
        first = self.first
        return min(taken[first]["time"] for taken in self.steps.values() if first in taken)


def worlds(folder: Path) -> list[World]:
    """The worlds of a job that took a step, in their order."""
    found: dict[str, World] = {}
    for path in sorted((folder / ROWS).glob("*.jsonl")):
        head, *entries = [json.loads(line) for line in _whole_lines(path)] or [{}]
        if entries:
            world = found.setdefault(head[WORLD], World(head["size"]))
            world.steps[head["rank"]] = {entry["step"]: entry for entry in entries}
    return sorted(found.values(), key=lambda world: world.began)


def rows_that_count(history: Iterable[World], steps: int) -> list[Counter[tuple[int, int]]]:
    """Rows of each step as they went into the final weights.

    A world goes on from a checkpoint, so what earlier worlds did from that step on is undone.

    Raises:
        AssertionError: A rank did not take part in a step that counts.
    """
    counted = []
    history = list(history)
    for step in range(steps):
        world = [world for world in history if world.first <= step][-1]
        rows: Counter[tuple[int, int]] = Counter()
        for rank in range(world.size):
            entry = world.steps[rank].get(step)
            assert entry is not None, f"rank {rank} of {world.size} has no step {step}"
            rows.update((user, item) for user, item in entry["rows"])
        counted.append(rows)
    return counted


def _whole_lines(path: Path) -> list[str]:
    """Lines of a file whose writer may have been killed in the last one."""
    return path.read_text().split("\n")[:-1]
