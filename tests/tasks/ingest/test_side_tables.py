"""Protects the day on which an item counts as known: a model must not know it earlier."""

from __future__ import annotations

from tasks.ingest import IngestMapping, ingest
from tasks.ingest.mapping import SideTable

EVENTS = """user,movie,seconds,text
u1,01,1767225600,Alien
u1,02,1767312000,Brazil
u2,01,1767312001,Alien
u2,03,1767398400,Casablanca
u3,01,1767398401,Alien (1979)
"""
MOVIES = """id|name|tags|year
01|Alien|space;horror|1979
02|Brazil||1985
02|Brazil (1985)|satire; ;future|1985
04|Dune|space|soon
05|Eraserhead|odd|1977
"""
MAP = {"user_id": "user", "item_id": "movie", "timestamp": "seconds"}


def test_items_are_known_from_their_first_interaction(lake, write, rows_of):
    write("in/movies.txt", MOVIES)
    items = SideTable(
        source="movies.txt",
        delimiter="|",
        map={"item_id": "id", "title": "name", "tags": "tags", "year": "year"},
        lists={"tags": ";"},
        types={"year": "int"},
    )
    report = ingest(write("in/events.csv", EVENTS), lake, IngestMapping(map=MAP, items=items))
    assert rows_of(lake, "raw/items") == [
        # 05 never occurs, so it is known from the first day.
        {
            "item_id": "01",
            "title": "Alien",
            "tags": ["space", "horror"],
            "year": 1979,
            "dt": "2026-01-01",
        },
        {"item_id": "05", "title": "Eraserhead", "tags": ["odd"], "year": 1977, "dt": "2026-01-01"},
        {
            "item_id": "02",
            "title": "Brazil (1985)",
            "tags": ["satire", "future"],
            "year": 1985,
            "dt": "2026-01-02",
        },
    ]
    table = report.side_tables[0]
    assert (table.rows_in, table.rows_out) == (5, 3)
    assert table.dropped == {"year is no int": 1, "followed by another row of that day": 1}


def test_items_described_in_the_interactions_are_written_when_they_change(lake, write, rows_of):
    items = SideTable(map={"item_id": "movie", "title": "text", "timestamp": "seconds"})
    mapping = IngestMapping(map=MAP, items=items)
    report = ingest(write("events.csv", EVENTS), lake, mapping)
    found = [(row["dt"], row["item_id"], row["title"]) for row in rows_of(lake, "raw/items")]
    assert found == [
        ("2026-01-01", "01", "Alien"),
        ("2026-01-02", "02", "Brazil"),
        ("2026-01-03", "03", "Casablanca"),
        ("2026-01-03", "01", "Alien (1979)"),
    ]
    assert report.side_tables[0].dropped == {"nothing new about its ID": 1}


def test_users_table_with_all_its_columns_and_one_day_for_all(lake, write, rows_of):
    write("in/people.csv", "user_id,country\nu3,DE\nu1,FR\n")
    users = SideTable(source="people.csv", known="first_day")
    ingest(write("in/events.csv", EVENTS), lake, IngestMapping(map=MAP, users=users))
    assert rows_of(lake, "raw/users") == [
        {"user_id": "u3", "country": "DE", "dt": "2026-01-01"},
        {"user_id": "u1", "country": "FR", "dt": "2026-01-01"},
    ]


def test_a_changed_items_table_does_not_disturb_the_interactions(lake, write):
    write("in/movies.txt", MOVIES)
    items = SideTable(source="movies.txt", delimiter="|", map={"item_id": "id", "title": "name"})
    mapping = IngestMapping(map=MAP, items=items)
    source = write("in/events.csv", EVENTS)
    ingest(source, lake, mapping)
    write("in/movies.txt", MOVIES.replace("Alien", "Aliens"))
    report = ingest(source, lake, mapping, existing="replace")
    assert report.interactions.actions == {"unchanged": 3}
    assert report.side_tables[0].actions == {"replaced": 2}
