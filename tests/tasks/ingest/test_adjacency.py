"""Protects the made-up times of data without times: order kept, all days used, clearly stated."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime

from tasks.ingest import IngestMapping, ingest
from tasks.ingest.mapping import AdjacencySettings


def test_pairs_are_spread_in_order_over_all_days(lake, write, rows_of):
    lines = [f"{user} " + " ".join(str(item) for item in range(10)) for user in range(200)]
    lines += ["alone 7", "nobody", "", "last 9"]
    mapping = IngestMapping(
        kind="adjacency", adjacency=AdjacencySettings(first_day=date(2026, 1, 1), days=5)
    )
    report = ingest(write("train.txt", "\n".join(lines)), lake, mapping)
    assert (report.interactions.rows_in, report.interactions.rows_out) == (2004, 2002)
    assert report.interactions.dropped == {"a user without items": 1, "empty line": 1}
    assert "SYNTHETIC" in report.notes[0]
    rows = rows_of(lake)
    per_user: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: row["timestamp"]):
        per_user.setdefault(row["user_id"], []).append(int(row["item_id"]))
    assert all(
        items == list(range(10))
        for user, items in per_user.items()
        if user not in ("alone", "last")
    )
    # Ten items over five days: two a day for each user, whatever the offset.
    per_day = Counter(
        row["timestamp"].date() for row in rows if len(per_user[row["user_id"]]) == 10
    )
    assert per_day == {date(2026, 1, day): 400 for day in range(1, 6)}


def test_the_time_follows_the_stated_formula(lake, write, rows_of):
    import xxhash

    mapping = IngestMapping(
        kind="adjacency", adjacency=AdjacencySettings(first_day=date(2026, 1, 1), days=4)
    )
    ingest(write("train.txt", "ann x y\n"), lake, mapping)
    offset = xxhash.xxh64_intdigest("ann") / 2**64
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    days = [(row["timestamp"] - begin).total_seconds() / 86_400 for row in rows_of(lake)]
    assert [round(4 * (j + offset) / 2 - day, 9) for j, day in enumerate(days)] == [0, 0]
