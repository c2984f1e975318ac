"""How often each value of a column occurs on a day, and what that says about the days before.

The counts of a day are a Parquet file, a row for each value, so that the days after can be
compared with it without reading its events again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from data_contracts import arrow_types, database
from data_contracts.data_files import DataFile, DataFiles
from data_contracts.footer_checks import FooterReport
from data_contracts.rules import Rule

#: Measures that are made from a day's value counts.
COUNTED = ("distinct", "unseen", "tail", "stability")
#: Categories that stability is measured on, the most frequent ones; the others are one together.
CATEGORIES = 100
#: Least share of a category: one that is absent from either side would make the index infinite.
_LEAST_SHARE = 1e-4


@dataclass(frozen=True)
class ValueCounts:
    """The file with a day's counts: columns `value` and `count`, without nulls."""

    fs: pafs.FileSystem
    path: str

    @property
    def schema(self) -> pa.Schema:
        """Types of the two columns."""
        return pq.read_schema(self.path, filesystem=self.fs)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The counts, in bounded batches."""
        file = DataFile(self.path, self.path)
        return DataFiles(self.fs, (file,)).batches(file, ("value", "count"))


#: Counts by column, of the days before.
Earlier = Mapping[date, Mapping[str, ValueCounts]]


def counted_columns(rules: Sequence[Rule]) -> tuple[str, ...]:
    """Columns that any of the rules wants counted."""
    return tuple(dict.fromkeys(rule.column[0] for rule in rules if rule.measure in COUNTED))


def count_values(data: DataFiles, report: FooterReport, column: str, target: Path) -> ValueCounts:
    """Counts the values of a column, or the elements of its lists, into a new local file."""
    filled = [footer.file for footer in report.footers if footer.rows]

    def values() -> Iterator[pa.Array]:
        for file in filled:
            for batch in data.batches(file, [column]):
                found = batch.column(0)
                yield pc.list_flatten(found) if arrow_types.is_list(found.type) else found

    (found,) = data.types(filled[0], [column]).values()
    kind = database.storable(found.value_type if arrow_types.is_list(found) else found)
    schema = pa.schema({"value": kind})
    stream = (pa.record_batch([part.cast(kind)], schema=schema) for part in values())
    target.parent.mkdir(parents=True, exist_ok=True)
    with database.tables(rows=(schema, stream)) as connection:
        path = str(target).replace("'", "''")
        connection.execute(
            "COPY (SELECT value, count(*) AS count FROM rows WHERE value IS NOT NULL "
            f"GROUP BY value) TO '{path}' (FORMAT parquet)"
        )
    return ValueCounts(pafs.LocalFileSystem(), str(target))


def measure(rule: Rule, today: ValueCounts, earlier: Sequence[ValueCounts]) -> float:
    """The number of a rule about value counts.

    Args:
        rule: A rule with a measure of `COUNTED`.
        today: Counts of the day.
        earlier: Counts of the days before.

    Returns:
        For `distinct` the number of values. For `unseen` the share, in percent, of events with a
        value that no day before has; for `tail` of those with a value that occurs fewer than
        `minimumCount` times on all these days. For `stability` the population stability index
        (Siddiqi, Credit Risk Scorecards, 2006): the sum over categories of (p - q) ln(p / q) of
        their shares today and before.
    """
    schema = today.schema
    # A type that changed between the days is another rule's finding.
    alike = [counts for counts in earlier if counts.schema.equals(schema)]
    before = (batch for counts in alike for batch in counts.batches())
    with database.tables(today=(schema, today.batches()), earlier=(schema, before)) as connection:
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE joined AS SELECT value, today.count, before FROM today "
            "FULL JOIN (SELECT value, sum(count) AS before FROM earlier GROUP BY value) "
            "USING (value)"
        )
        if rule.measure == "stability":
            return _stability(connection.execute(_LARGEST, [CATEGORIES]).fetchall())
        least = [rule.settings["minimumCount"]] if rule.measure == "tail" else []
        row = connection.execute(_NUMBERS[rule.measure], least).fetchone()
    return float(row[0] or 0) if row else 0.0


_NUMBERS = {
    "distinct": "SELECT count(count) FROM joined",
    "unseen": "SELECT 100 * sum(count) FILTER (before IS NULL) / sum(count) FROM joined",
    "tail": "SELECT 100 * sum(count) FILTER (count + coalesce(before, 0) < ?) / sum(count) "
    "FROM joined",
}
#: Counts of the most frequent values, and of all others together.
_LARGEST = """
WITH ranked AS (
    SELECT coalesce(count, 0) AS today, coalesce(before, 0) AS earlier,
           row_number() OVER (ORDER BY today + earlier DESC, value) AS place
    FROM joined)
SELECT sum(today), sum(earlier) FROM ranked GROUP BY least(place, ? + 1)
"""


def _stability(categories: Sequence[tuple[float, float]]) -> float:
    """The index of pairs of counts, today and before."""
    now, then = (float(sum(side)) for side in zip(*categories, strict=True))
    index = 0.0
    for count, before in categories:
        p = max(float(count) / max(now, 1.0), _LEAST_SHARE)
        q = max(float(before) / max(then, 1.0), _LEAST_SHARE)
        index += (p - q) * math.log(p / q)
    return index
