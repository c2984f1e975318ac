"""Settings of the published bundle: how its numbers are kept, and how items are searched.

Light on purpose (pydantic only), as `tasks/config.py`, which has them as its section `serving`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from models.config import Settings

Precision = Literal["fp32", "fp16", "int8", "int4"]
"""Numbers of a row: as they are, halved, or 8 or 4 bits with a scale and an offset a row."""


class ServingSettings(Settings):
    """What `publish` makes of the champion for the servers."""

    tables: Precision = "fp32"
    """Numbers of the embedding tables. Fewer bits take less memory and no less time: a request
    reads a few rows."""
    item_vectors: Precision = "fp32"
    """Numbers of the item vectors; fewer bits take less memory, and more time where every item is
    scored. A prior's column stays `fp32`."""
    index: Literal["auto", "exact", "approximate"] = "auto"
    """`exact`: every item is scored. `approximate`: an index of FAISS picks the items that are
    scored. `auto`: the index from `index_from` items on."""
    index_from: int = Field(default=200_000, ge=1)
    """`auto` only: items from which the index is built."""
    min_overlap: float = Field(default=0.95, ge=0, le=1)
    """Share of the best items by full precision that must be left by the served one; with less,
    nothing is published."""
    min_recall: float = Field(default=0.98, ge=0, le=1)
    """Share of the exact search's best 100 that the index must find; with less, nothing is
    published."""
    sample_users: int = Field(default=512, ge=8)
    """Users on whom both are measured."""
