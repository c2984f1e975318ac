"""The vocabulary step: a chain of days that comes out the same however it is run."""

import json
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from tasks.errors import DataError, UpstreamError
from tests.tasks.longtail.policy_reference import Owner, next_owners, window_units
from tests.tasks.longtail.raw_lake import (
    TABLES,
    at,
    day_of,
    events,
    read_output,
    run_steps,
    spec_of,
    write_partition,
)

STEPS = ("await_partition", "count", "vocabulary")
POLICY = {"min_count": 6, "keep_count": 3, "ttl_days": 2, "decay": 0.8, "tail_buckets": 3}
DRIFTING = {
    "user": {"source": "interactions.user_id", "vocabulary": {"min_count": 4, "tail_buckets": 2}},
    "item": {"source": "interactions.item_id", "vocabulary": POLICY},
}


def drifting_rows(number):
    """Items come and go: item n is popular around day n / 3."""
    return [
        (f"u{n % 11}", f"i{number * 3 + (n * n) % 9 - (n % 4)}", at(number, n)) for n in range(90)
    ]


def fill(lake, days=6):
    for number in range(1, days + 1):
        write_partition(lake, "interactions", number, events(drifting_rows(number)))


def settings(**data):
    return {"tables": DRIFTING, "data": {"window_days": 3, **data}}


def digests(spec, tables=("item", "user")):
    return {
        (table, entry.path.rsplit("/", 1)[-1]): entry.digest
        for table in tables
        for entry in spec.output("vocabulary", table).manifest.files
    }


def test_days_at_once_and_one_by_one_give_the_same_bytes(tmp_path):
    fill(tmp_path / "once")
    fill(tmp_path / "daily")
    at_once = spec_of(tmp_path / "once", 6, **settings())
    run_steps(at_once, *STEPS)
    built = []
    for number in range(2, 7):
        daily = spec_of(tmp_path / "daily", number, **settings())
        built.append(run_steps(daily, *STEPS).facts["built"])
    assert built == [2] * 5
    assert digests(daily) == digests(at_once)
    again = run_steps(at_once, "vocabulary")
    assert again.facts["built"] == 0


def test_the_chain_follows_the_reference_policy(tmp_path):
    fill(tmp_path)
    spec = spec_of(tmp_path, 6, **settings())
    run_steps(spec, *STEPS)
    table = spec.config.tables["item"]
    counts: dict[Any, dict[str, int]] = {}
    for number in range(1, 6):
        day = counts.setdefault(day_of(number), {})
        for _, item, _ in drifting_rows(number):
            day[item] = day.get(item, 0) + 1
    owners: dict[Any, Owner] = {}
    for number in range(2, 7):
        units, seen = window_units(counts, day_of(number), 3, 0.8)
        owners = next_owners(owners, units, seen, table.vocabulary, day_of(number))
    found = read_output(spec, "vocabulary", "item").to_pydict()
    assert dict(zip(found["id"], found["row"], strict=True)) == {
        key: owner.row for key, owner in owners.items()
    }
    assert found["count"] == [owners[key].units / 2**20 for key in found["id"]]
    assert found["last_seen"] == [owners[key].last_seen for key in found["id"]]
    assert found["row"] == sorted(found["row"])


def test_health_adds_up(tmp_path):
    fill(tmp_path)
    spec = spec_of(tmp_path, 6, **settings())
    run_steps(spec, *STEPS)
    published = spec.output("vocabulary", "user")
    facts = published.manifest.meta["health"]
    # The window of three days: 270 events over 11 users, each of whom has more than four.
    assert (facts["ids"], facts["events"], facts["covered_share"]) == (11, 270.0, 1.0)
    assert facts["rows"] == published.manifest.meta["rows"] == 1 + 2 + 11
    assert facts["rows_full_table"] == 12
    item = spec.output("vocabulary", "item")
    body = json.loads(spec.lake().read_text(item.file("health.json")))
    facts = body["facts"]
    assert facts["ids_in_tail"] == sum(body["buckets"]["ids"])
    tail_events = sum(body["buckets"]["events"])
    assert facts["covered_share"] == pytest.approx(1 - tail_events / facts["events"], abs=1e-5)
    assert body["curve"]["rank"][-1] == facts["ids"]
    pictures = spec.output("vocabulary", "pictures")
    for table in ("item", "user"):
        content = spec.lake().local_path(pictures.file(f"{table}.png")).read_bytes()
        assert content.startswith(b"\x89PNG")


def test_a_late_file_remakes_the_vocabularies_after_it_and_no_other(tmp_path):
    fill(tmp_path)
    spec = spec_of(tmp_path, 6, **settings())
    run_steps(spec, *STEPS)
    before = digests(spec)
    late = events([(f"u{n}", "late", at(4)) for n in range(9)])
    write_partition(tmp_path, "interactions", 4, {"late.parquet": late})
    result = run_steps(spec, *STEPS)
    # Days 5 and 6 of both tables; days 2 to 4 were made from the days before the late one.
    assert result.facts["built"] == 4
    assert digests(spec) != before
    assert "late" in read_output(spec, "vocabulary", "item")["id"].to_pylist()


def test_nothing_of_the_test_day_reaches_the_vocabulary(tmp_path):
    fill(tmp_path / "plain")
    fill(tmp_path / "planted")
    planted = events(
        [*drifting_rows(6), *((f"u{n % 11}", "planted", at(6, n)) for n in range(500))]
    )
    write_partition(tmp_path / "planted", "interactions", 6, planted)
    specs = [spec_of(tmp_path / name, 6, **settings()) for name in ("plain", "planted")]
    for spec in specs:
        run_steps(spec, *STEPS)
    assert digests(specs[0]) == digests(specs[1])


def test_a_side_table_counts_every_delivery_before_the_test_day_once(tmp_path):
    fill(tmp_path, 4)
    for number, colours in ((1, ["red", "red", "blue"]), (3, ["blue", "green"]), (4, ["pink"])):
        items = [f"i{number}{n}" for n in range(len(colours))]
        table = pa.table({"item_id": items, "colour": colours})
        write_partition(tmp_path, "items", number, table)
    tables = {**TABLES, "colour": {"source": "items.colour", "vocabulary": {"min_count": 2}}}
    found = {}
    for number in (2, 3, 4):
        spec = spec_of(tmp_path, number, tables=tables)
        run_steps(spec, *STEPS)
        rows = read_output(spec, "vocabulary", "colour").to_pydict()
        found[number] = dict(zip(rows["id"], rows["row"], strict=True))
        path = spec.require("vocabulary").outputs["colour"]
        assert path.split("/")[2] == f"dt={day_of({2: 2, 3: 2, 4: 4}[number])}"
    assert found == {2: {"red": 2}, 3: {"red": 2}, 4: {"red": 2, "blue": 3}}


def test_a_side_table_first_delivered_on_the_test_day_gives_an_empty_vocabulary(tmp_path):
    fill(tmp_path, 2)
    write_partition(tmp_path, "items", 2, pa.table({"item_id": ["i"], "colour": ["red"]}))
    tables = {**TABLES, "colour": {"source": "items.colour"}}
    spec = spec_of(tmp_path, 2, tables=tables)
    result = run_steps(spec, *STEPS)
    assert result.facts["tables"]["colour"]["rows"] == 2
    assert read_output(spec, "vocabulary", "colour").num_rows == 0


def test_ids_that_change_their_type_between_days_are_refused(tmp_path):
    write_partition(tmp_path, "interactions", 1, events([("1", "i", at(1))]))
    write_partition(tmp_path, "interactions", 2, events([(1, "i", at(2))]))
    write_partition(tmp_path, "interactions", 3, events([(1, "i", at(3))]))
    spec = spec_of(tmp_path, 3)
    with pytest.raises(DataError, match="Int64 on 2026-03-02, String on 2026-03-01"):
        run_steps(spec, *STEPS)


def test_counts_are_needed_first(tmp_path):
    fill(tmp_path, 2)
    with pytest.raises(UpstreamError, match="step 'count' has not finished"):
        run_steps(spec_of(tmp_path, 2), "vocabulary")


def test_a_gap_in_the_days_does_not_stop_the_chain(tmp_path):
    for number in (1, 2, 5):
        write_partition(tmp_path, "interactions", number, events(drifting_rows(number)))
    spec = spec_of(tmp_path, 5, **settings(allow_gaps=True))
    days = (day_of(2),)
    assert days[0] + timedelta(days=3) == spec.day
    spec = spec.model_copy(update={"train_days": days})
    run_steps(spec, *STEPS)
    # ttl_days 2: on day 5 nothing was seen for two days (3 and 4), so every item has left.
    assert read_output(spec, "vocabulary", "item").num_rows == 0
    assert read_output(spec, "vocabulary", "user").num_rows == 11
