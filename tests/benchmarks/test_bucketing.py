"""The arithmetic of the bucketing benchmark: ways spend the same bytes, what a way keeps is
compared at equal seeds, dropped IDs have no row, and a finished cell is not trained again."""

import json
import xml.etree.ElementTree as ElementTree

import pyarrow as pa
import pytest

from benchmarks import bucketing
from benchmarks.bucketing import EVERY_ID, WAYS, Way
from benchmarks.bucketing_figure import draw
from tasks.config import TableSettings


@pytest.mark.parametrize("name", WAYS)
def test_a_way_fills_the_rows_that_it_is_given(name):
    vocabulary = TableSettings.model_validate(WAYS[name].table(101)).vocabulary
    own = 0 if WAYS[name].own == 0 else vocabulary.max_rows or 0
    assert 1 + vocabulary.tail_buckets + own == 101, "padding, buckets and own rows"


def test_fractions_are_shares_of_the_rows():
    assert WAYS["hashed buckets, 1/10"].table(101)["vocabulary"]["tail_buckets"] == 10
    assert WAYS["double hashing, 1/2"].table(101)["vocabulary"]["tail_buckets"] == 50
    assert WAYS["double hashing, 1/2"].table(101)["vocabulary"]["hashes"] == 2


def test_bytes_of_a_row_have_those_of_the_optimizer():
    assert EVERY_ID.row_bytes == 64 * 4 + 4
    assert Way(own=0.5, dim=32, dtype="fp16").row_bytes == 32 * 2 + 4


def test_dropped_ids_have_the_padding_row_and_owners_keep_theirs():
    codes = pa.array([[5], [2], [3], [1]], pa.list_(pa.int32()))
    corpus = pa.table({"train_count": [4, 3, 2, 1], "id": codes})
    found = bucketing.owners_only(corpus, buckets=2)
    assert found["id"].to_pylist() == [[5], [0], [3], [0]]
    assert found["train_count"].to_pylist() == [4, 3, 2, 1]


def test_lists_of_neighbours_are_paid_for():
    way = Way(own=0.75, dim=32, dtype="fp16", neighbours=2)
    # 26,000 bytes for 1000 IDs: 8,000 for two numbers of each, 68 for each row.
    assert way.rows(26_000, 1000) == 264
    assert Way(own=0.75, dim=32, dtype="fp16").rows(26_000, 1000) == 382


class FakeWorld:
    """Knows what every training would find: 0.4 for the full table, half of it for the others."""

    name = "fake"

    def __init__(self):
        self.asked = []

    def cell(self, way, rows, seed):
        self.asked.append((rows, seed))
        used = 1000 if rows is None else rows
        recall = 0.4 + 0.1 * (seed - 1) if rows is None else 0.2 * seed
        return {"rows": used, "recall_at_20": recall, "ndcg_at_20": 0.1}


def test_ways_are_compared_at_equal_bytes_and_seeds():
    world = FakeWorld()
    ways = {"short": Way(own=0.5, dtype="fp16"), "long": Way(own=0.5)}
    seeds = {"full table": 2, "short": 1, "long": 2}
    report = bucketing.compare(world, [0.1], ways, seeds.__getitem__)
    # A tenth of 1000 rows of 260 bytes: 100 of them, or 196 of 132 bytes.
    assert world.asked == [(None, 1), (None, 2), (196, 1), (100, 1), (100, 2)]
    assert report["full table"]["bytes"] == 260_000
    assert report["long at 0.1"]["bytes_share"] == pytest.approx(0.1)
    assert report["short at 0.1"]["kept"] == pytest.approx(0.5), "0.2 / 0.4, of the first seed"
    assert report["long at 0.1"]["kept"] == pytest.approx((0.2 / 0.4 + 0.4 / 0.5) / 2)


def test_further_shares_are_for_the_curve_alone():
    world, ways = FakeWorld(), {"modulo hash": Way(own=0), "other": Way(own=0.5)}
    report = bucketing.compare(world, [0.1, 0.2], ways, lambda _: 2)
    assert world.asked[2:] == [(100, 1), (100, 2), (100, 1), (100, 2), (200, 1)]
    assert {"modulo hash at 0.1", "modulo hash at 0.2", "other at 0.1"} == {*report} - {
        "full table"
    }


def test_the_figure_has_a_panel_for_every_data_set(tmp_path):
    ways = {name: Way(own=0.5) for name in WAYS}
    found = {
        name: {"ways": bucketing.compare(FakeWorld(), [0.05, 0.1], ways, lambda _: 1)}
        for name in ("one", "two")
    }
    draw(found, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for title in ("one: full table 0.4000", "two: full table 0.4000"):
        assert f"<!-- {title} -->" in text


@pytest.mark.slow
@pytest.mark.integration
def test_a_finished_cell_is_read_again(tmp_path, capsys, monkeypatch):
    arguments = ["--data", "synthetic", "--users", "400", "--epochs", "1", "--seeds", "1"]
    ways = ["--ways", "shared bucket", "dropped to unknown", "modulo hash"]
    ways += ["2 neighbours, 1/10, fp16, 32 wide"]
    arguments += [*ways, "--shares", "0.1", "--cache", str(tmp_path)]

    def run():
        bucketing.main(arguments)
        return json.loads(capsys.readouterr().out.splitlines()[-1])["data"]["synthetic"]["ways"]

    first = run()
    for name, figures in first.items():
        assert figures["bytes_share"] <= (1 if name == "full table" else 0.1)
        assert 0 <= figures["recall_at_20"]["mean"] < 1
    assert first["full table"]["recall_at_20"]["mean"] > 0
    assert len({figures["recall_at_20"]["mean"] for figures in first.values()}) > 1

    def never(*_arguments):
        raise AssertionError("a finished cell was trained again")

    monkeypatch.setattr(bucketing, "prepare", never)
    assert run() == first
