"""A vocabulary: which IDs own a row of an embedding table."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from tasks.config import VocabularySettings
from tasks.lake import Lake, Output, Published
from tasks.longtail.columns import from_arrow, to_arrow

FILE = "part-0.parquet"


@dataclass(frozen=True)
class Changes:
    """What happened between two vocabularies."""

    kept: int = 0
    promoted: int = 0
    """IDs that gained a row."""
    demoted: int = 0
    """IDs that lost their row."""
    new_rows: int = 0
    """Promoted IDs whose row lies above all earlier ones."""
    reused_rows: int = 0
    """Promoted IDs that took over a freed row."""


@dataclass(frozen=True)
class Vocabulary:
    """The IDs that own a row, and the rule for all others.

    Attributes:
        policy: The settings; they say how an ID without a row finds its bucket rows.
        table: One row for each owner, ordered by `row`: `id`, `row` (Int32), `count` (Float64,
            decayed), `last_seen` (Date), `since` (Date, day of the vocabulary that promoted it).
        changes: Difference to the vocabulary before.
    """

    policy: VocabularySettings
    table: pl.DataFrame
    changes: Changes = field(default_factory=Changes)

    @property
    def first_own_row(self) -> int:
        """Rows below are padding and tail buckets."""
        return self.policy.tail_buckets + 1

    @cached_property
    def rows(self) -> int:
        """Rows of the embedding table, padding and buckets included."""
        top = self.table["row"].max()
        return self.first_own_row if top is None else int(str(top)) + 1

    def meta(self) -> dict[str, Any]:
        """What readers of the file need beside it."""
        return {
            "rows": self.rows,
            "hashes": self.policy.hashes,
            "tail_buckets": self.policy.tail_buckets,
            "seed": self.policy.seed,
            "hash": "xxh3_64",
            "own_rows": self.table.height,
            "policy": self.policy.model_dump(mode="json"),
        }

    def write(self, output: Output) -> None:
        """Writes the table below an output and its meta into the manifest."""
        with output.open(FILE) as stream:
            # No two rows share an ID or a row: a dictionary of them would be thrown away again.
            repeated = ["count", "last_seen", "since"]
            table = to_arrow(self.table)
            pq.write_table(table, stream, compression="zstd", use_dictionary=repeated)
        output.meta.update(self.meta())


def empty_table(dtype: pl.DataType) -> pl.DataFrame:
    """A vocabulary's table without owners."""
    return pl.DataFrame(
        schema={
            "id": dtype,
            "row": pl.Int32(),
            "count": pl.Float64(),
            "last_seen": pl.Date(),
            "since": pl.Date(),
        }
    )


def read_vocabulary(lake: Lake, published: Published) -> Vocabulary:
    """Reads a published vocabulary."""
    table = from_arrow(lake.read_table(published.file(FILE)))
    policy = VocabularySettings.model_validate(published.manifest.meta["policy"])
    return Vocabulary(policy, table)
