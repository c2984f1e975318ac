"""A raw file of interactions, as its manifest names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EventFile:
    """A file of interactions: lake path, and rows as its manifest says."""

    path: str
    rows: int
