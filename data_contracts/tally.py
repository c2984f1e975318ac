"""The number behind a rule, counted file by file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from data_contracts.rules import shown

SAMPLES = 5


@dataclass
class Tally:
    """The number behind one rule, mergeable over files.

    Attributes:
        count: Rows (or list elements) that break the rule's condition.
        of: Rows (or list elements) that were looked at.
        low: Smallest value, for the measure `smallest`.
        high: Largest value, for the measure `largest`; for `staleness` the newest event, in
            microseconds since 1970.
        samples: Some of the values that break it.
        files: Count by file.
    """

    count: int = 0
    of: int = 0
    low: float | None = None
    high: float | None = None
    samples: list[str] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)

    def merge(self, other: Tally) -> None:
        """Adds another file's tally."""
        self.count += other.count
        self.of += other.of
        self.low = min((n for n in (self.low, other.low) if n is not None), default=None)
        self.high = max((n for n in (self.high, other.high) if n is not None), default=None)
        self.samples = (self.samples + other.samples)[:SAMPLES]
        for name, count in other.files.items():
            self.files[name] = self.files.get(name, 0) + count


Tallies = dict[str, Tally]


def tally_of(
    file: str,
    count: int,
    of: int,
    samples: Sequence[object] = (),
    personal: bool = False,
) -> Tally:
    """The tally of one batch of a file."""
    return Tally(
        count=count,
        of=of,
        samples=[shown(value, personal=personal) for value in samples],
        files={file: count} if count else {},
    )
