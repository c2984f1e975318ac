"""Protects the promise rows in = rows out + dropped, for any content and any amount of memory.

The kept rows are compared with a second implementation in plain Python.
"""

from __future__ import annotations

import csv
import io
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.ingest import IngestMapping, ingest
from tasks.ingest.mapping import DropRule
from tasks.lake import Lake

START = 1_767_225_600  # 2026-01-01
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=4)
ids = st.one_of(st.sampled_from(["", "1", "01", "x", "NULL", " "]), texts)
times = st.one_of(
    st.integers(START, START + 5 * 86_400).map(str), st.sampled_from(["", "later", "-5", "1e400"])
)
rows = st.lists(
    st.tuples(ids, ids, times, st.sampled_from(["C1", "A", ""])), min_size=0, max_size=60
)


def blank(text: str) -> bool:
    # Python strips the separators of ASCII, which are no white space to Unicode.
    return all(c.isspace() and c not in "\x1c\x1d\x1e\x1f" for c in text)


def reference(kept_by: list[tuple[str, str, str, str]]) -> Counter[tuple[str, str, float]]:
    nulls = {"", "NULL", "null", "NaN", "nan", "\\N"}
    kept: Counter[tuple[str, str, float]] = Counter()
    for user, item, time, invoice in kept_by:
        good = not any(value in nulls or blank(value) for value in (user, item))
        if good and time.isdigit() and not invoice.startswith("C"):
            kept[user, item, float(time)] += 1
    return kept


@settings(max_examples=25, deadline=None)
@example(rows=[("1", "\x1f", str(START), "A"), ("\u2003", "1", str(START), "A")], run_bytes=1)
@given(rows=rows, run_bytes=st.sampled_from([1, 2_000, 1 << 20]))
def test_rows_in_are_rows_out_plus_dropped(rows, run_bytes):
    # One good row makes the source usable and settles what numbers mean as times.
    rows = [("u", "i", str(START), "A"), *rows]
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["user_id", "item_id", "timestamp", "invoice"])
    writer.writerows(rows)
    rule = DropRule(name="cancelled", column="invoice", drop_if="starts_with", value="C")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
        lake = Lake(f"{folder}/lake")
        mapping = IngestMapping(filters=(rule,), time_format="s")
        report = ingest(str(path), lake, mapping, scratch=folder, run_bytes=run_bytes).interactions
        found: Counter[tuple[str, str, float]] = Counter()
        for day in lake.days("raw/interactions"):
            published = lake.partition("raw/interactions", day)
            assert published is not None
            for row in lake.read_tables(published).to_pylist():
                assert row["timestamp"].date() == day
                found[row["user_id"], row["item_id"], row["timestamp"].timestamp()] += 1
        leftovers = list(Path(folder).glob("tailtower-ingest-*"))
    assert report.rows_in == len(rows) == report.rows_out + sum(report.dropped.values())
    assert found == reference(rows)
    assert report.rows_out == found.total()
    assert leftovers == []


def test_the_reference_itself_counts_a_hand_made_case():
    kept = reference([("a", "b", "5", "A"), ("a", "b", "5", "C9"), (" ", "b", "5", "")])
    assert kept == {("a", "b", 5.0): 1}
    assert datetime.fromtimestamp(START, UTC).isoformat() == "2026-01-01T00:00:00+00:00"
