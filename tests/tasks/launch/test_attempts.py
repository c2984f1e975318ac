"""Attempts are numbered once each, whoever begins them, and know when they have been replaced."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from tasks.launch.attempts import (
    SILENT_SECONDS,
    Attempt,
    NodeRecord,
    newest,
    read_record,
    write_record,
)


def test_callers_that_begin_together_get_numbers_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda n: Attempt.begin(tmp_path, {"n": n}), range(40)))
    assert sorted(attempt.number for attempt in begun) == list(range(1, 41))
    assert newest(tmp_path) == max(begun, key=lambda attempt: attempt.number)
    assert {attempt.settings()["n"] for attempt in begun} == set(range(40))


def test_an_attempt_ends_when_it_is_cancelled_or_replaced(tmp_path):
    first = Attempt.begin(tmp_path, {})
    assert not first.must_end()
    second = Attempt.begin(tmp_path, {})
    assert first.must_end()
    assert not second.must_end()
    Attempt.at(second.folder).cancel()
    assert second.must_end()


def test_a_silent_node_is_not_alive_and_an_ended_one_is_not_either(tmp_path):
    attempt = Attempt.begin(tmp_path, {})
    now = time.time()
    for node, beat, status in (
        ("1", now, None),
        ("2", now - SILENT_SECONDS - 1, None),
        ("3", now, 0),
    ):
        record = NodeRecord(node, "10.0.0.1", beat, status)
        write_record(attempt.node_record(node), asdict(record))
    attempt.node_log("1").touch()
    assert [node.is_alive for node in attempt.nodes()] == [True, False, False]


def test_a_record_is_read_whole_or_not_at_all(tmp_path):
    path = tmp_path / "record.json"
    assert read_record(path) is None
    write_record(path, {"a": 1})
    assert read_record(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]
