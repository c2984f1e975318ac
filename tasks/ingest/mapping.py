"""What a user's files look like and how their columns become the lake's.

The same settings come from a small YAML file (`--mapping`) or from the command line.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Literal

from pydantic import Field, model_validator

from models.config import Settings

#: Comparisons of a drop rule that take a number, a text, a list of texts, or nothing.
NUMERIC = ("less_than", "at_most", "greater_than", "at_least")
TEXTUAL = ("equals", "not_equals", "starts_with", "matches")
LISTED = ("in", "not_in")
Comparison = Literal[
    "less_than",
    "at_most",
    "greater_than",
    "at_least",
    "equals",
    "not_equals",
    "starts_with",
    "matches",
    "in",
    "not_in",
    "missing",
]

INTERACTION_TARGETS = ("user_id", "item_id", "timestamp", "weight")


class DropRule(Settings):
    """A rule that drops rows; the report counts them under its name."""

    name: str = Field(min_length=1)
    """Name of the rule in the report, for example `cancelled`."""
    column: str
    """Column of the source file."""
    drop_if: Comparison
    """Rows for which this holds are dropped. A missing value never holds, except for `missing`;
    a text that is no number is dropped by a numeric comparison."""
    value: str | float | tuple[str, ...] | None = None
    """What the column is compared with: a number, a text (for `matches`, a regular expression
    found anywhere in the value), a list for `in` and `not_in`, nothing for `missing`."""

    @model_validator(mode="after")
    def _value_fits(self) -> DropRule:
        if self.drop_if == "missing":
            fits = self.value is None
        elif self.drop_if in LISTED:
            fits = isinstance(self.value, tuple)
        elif self.drop_if in NUMERIC:
            fits = isinstance(self.value, float)
        else:
            fits = isinstance(self.value, str)
        if not fits:
            wanted = {"missing": "no value", "in": "a list of texts", "not_in": "a list of texts"}
            kind = wanted.get(self.drop_if, "a number" if self.drop_if in NUMERIC else "a text")
            raise ValueError(f"drop_if: {self.drop_if} takes {kind}")
        if self.drop_if == "matches":
            try:
                re.compile(str(self.value))
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return self


class FileSettings(Settings):
    """How the files are read; nothing here matters for Parquet but `files`."""

    files: str = "*"
    """Which files of a folder are read, as a glob; hidden ones and those with `_` never are."""
    delimiter: str | None = Field(default=None, min_length=1, max_length=4)
    """Between two columns: `,` or a tab by the file's ending, or any text such as `::`. With more
    than one character, quotation marks are ordinary characters."""
    columns: tuple[str, ...] | None = None
    """Column names of a file without a header line."""
    quote: str | None = Field(default='"', min_length=1, max_length=1)
    """Quotation mark; null when it is an ordinary character."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    null_values: tuple[str, ...] = ("", "NULL", "null", "NaN", "nan", "\\N")
    """Texts that mean a missing value."""
    time_format: str = "auto"
    """`auto`, `iso`, an epoch unit (`s`, `ms`, `us`, `ns`), or a pattern such as
    `%d/%m/%Y %H:%M`. `auto` reads ISO 8601 texts; whole numbers are epoch seconds, ms, us or ns by
    the magnitude of the first rows' median (from 1e8, 1e11, 1e14, 1e17)."""
    timezone: str = "UTC"
    """Time zone of times that do not name one, for example `Europe/London`."""
    types: dict[str, Literal["string", "int", "float"]] = Field(default_factory=dict)
    """Lake column → type, for columns that are carried along; by default the type of the source
    column, text for text files. A value that does not fit drops its row."""
    filters: tuple[DropRule, ...] = ()
    """Rules that drop rows, applied in this order to rows that are otherwise good."""

    @model_validator(mode="after")
    def _sensible(self) -> FileSettings:
        names = [rule.name for rule in self.filters]
        if len(set(names)) != len(names):
            raise ValueError("filters: two rules have the same name")
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise ValueError("columns: a name is given twice")
        epoch_or_word = ("auto", "iso", "s", "ms", "us", "ns")
        if self.time_format not in epoch_or_word and "%" not in self.time_format:
            words = ", ".join(epoch_or_word)
            raise ValueError(f"time_format: one of {words}, or a pattern with % signs")
        return self


class SideTable(FileSettings):
    """An items or users table."""

    source: str | None = None
    """File, folder or glob; relative paths start at the folder of the interactions. By default the
    interactions' own files."""
    map: dict[str, str] = Field(default_factory=dict)
    """Lake column → source column. `item_id` or `user_id` is needed, `title` and any attribute may
    follow; `timestamp` is the time at which the row became known."""
    lists: dict[str, str] = Field(default_factory=dict)
    """Attribute → separator, for columns such as `Drama|Crime`, which become lists."""
    id_type: Literal["auto", "string", "int"] = "auto"
    """Type of the ID: as in the interactions."""
    known: Literal["first_seen", "first_day"] = "first_seen"
    """Day on which a row without `timestamp` counts as known: `first_seen` is the first day on
    which its ID occurs in these interactions (the first day of all for IDs that never occur), so a
    model of an earlier day cannot know it; `first_day` is the first day for all."""

    @model_validator(mode="after")
    def _attributes_are_mapped(self) -> SideTable:
        unknown = (set(self.lists) | set(self.types)) - set(self.map)
        if unknown:
            raise ValueError(f"lists and types name what map lacks: {', '.join(sorted(unknown))}")
        return self


class AdjacencySettings(Settings):
    """Dates for data that has none."""

    first_day: date = date(2020, 1, 1)
    """First synthetic day."""
    days: int = Field(default=30, ge=1, le=3650)
    """Synthetic days over which each user's items are spread, in the order given."""


class IngestMapping(FileSettings):
    """How a user's interactions, and optionally items and users, become raw data of the lake."""

    kind: Literal["table", "adjacency"] = "table"
    """`table`: one row an interaction. `adjacency`: lines `user item item …` without times, which
    get synthetic ones (see `adjacency`)."""
    map: dict[str, str] = Field(default_factory=dict)
    """Lake column → source column: `user_id`, `item_id`, `timestamp`, optionally `weight`; any
    other name is carried along as a column of that name. Left out, usual names are looked for."""
    id_type: Literal["auto", "string", "int"] = "auto"
    """Type of both IDs. `auto` keeps what the source has: text stays text, with its leading zeros;
    integers, and floats that are whole numbers, are integers."""
    drop_duplicates: bool = False
    """Whether all but the first of rows with equal user, item and timestamp are dropped."""
    adjacency: AdjacencySettings = AdjacencySettings()
    """Dates for `kind: adjacency`."""
    items: SideTable | None = None
    """The items table."""
    users: SideTable | None = None
    """The users table."""
