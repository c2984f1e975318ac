"""Sizes and behaviour of the synthetic logs; every field is documented where it is declared."""

from __future__ import annotations

import hashlib

from pydantic import Field, model_validator

from models.config import Settings
from tasks.demo_data.themes import THEMES

#: Raised when the generator's output for equal settings changes, so that an older day is
#: recognised as another log instead of being taken for the same.
GENERATOR_VERSION = 1


class DemoSettings(Settings):
    """A synthetic log. Equal settings give equal days, whichever days are asked for."""

    users: int = Field(default=1_000, ge=10)
    """Regular users who are there from the beginning and stay."""
    items: int = Field(default=700, ge=10)
    """Regular items that are there from the beginning and stay."""
    events_per_day: int = Field(default=12_000, ge=100)
    """Interactions of one day, exactly."""
    visitor_share: float = Field(default=0.4, ge=0, le=0.8)
    """Share of a day's events that belongs to visitors: users who come once or twice."""
    rare_item_share: float = Field(default=0.22, ge=0, le=0.8)
    """Share of a day's events that falls on rare items: items that are taken once or twice."""
    joiners_per_day: int = Field(default=60, ge=0)
    """New users of each day who stay for one to two weeks."""
    releases_per_day: int = Field(default=16, ge=0)
    """New items of each day that are in demand for one to two weeks."""
    clusters: int = Field(default=24, ge=2, le=len(THEMES))
    """Taste clusters, the hidden truth behind who takes what."""
    focus: float = Field(default=0.75, ge=0, le=1)
    """Probability that a session is about its user's main taste cluster."""
    zipf_exponent: float = Field(default=1.05, gt=0, le=3)
    """Exponent of the Zipf-Mandelbrot law of regular users and items."""
    drift: float = Field(default=0.5, ge=0, le=2)
    """How far an item's log-popularity swings around its mean over a few weeks."""
    seed: int = Field(default=7, ge=0, lt=2**63)
    """Seed of everything that is drawn."""

    @model_validator(mode="after")
    def _enough_for_every_cluster(self) -> DemoSettings:
        if self.items < self.clusters:
            raise ValueError(f"{self.items} items cannot fill {self.clusters} taste clusters")
        return self

    @property
    def digest(self) -> str:
        """Names the log that these settings stand for; part of every partition's manifest."""
        text = f"demo-data v{GENERATOR_VERSION} {self.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()
