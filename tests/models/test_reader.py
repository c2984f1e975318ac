"""Protects the input: each row once per epoch, the same sequence at any number of ranks, exact
resume, and errors that name the file and the row."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.config import FeatureSettings, ModelSettings, TowerSettings, TrainJob
from models.errors import ExamplesError
from models.reader import ExampleReader, MacroBatch
from tests.models.worlds import make_job, make_world

MODEL = ModelSettings(
    user=TowerSettings(
        features=(
            FeatureSettings(name="colour", table="user", kind="list"),
            FeatureSettings(name="recent", table="item", kind="history"),
        )
    ),
    item=TowerSettings(features=(FeatureSettings(name="item_id_code", table="item"),)),
)
ITEMS = 1000


def _job(folder: Path, shard_rows: list[int], **training: Any) -> TrainJob:
    """Shards whose `item` numbers all rows, so that a row can be followed."""
    world = make_world(folder / "world", num_users=5, num_items=5)
    files, first = [], 0
    for number, rows in enumerate(shard_rows):
        ids = range(first, first + rows)
        table = pa.table(
            {
                "user": pa.array([i % 5 for i in ids], pa.int64()),
                "item": pa.array(ids, pa.int32()),
                "history": pa.array([[i] * (i % 3) for i in ids], pa.list_(pa.int32())),
                "colour": pa.array([[i % 4, 1] for i in ids], pa.list_(pa.int32())),
                "weight": pa.array([1.0 + i % 2 for i in ids], pa.float32()),
            }
        )
        path = str(folder / f"shard-{number}.parquet")
        pq.write_table(table, path)
        files.append(path)
        first += rows
    job = make_job(world, folder, model=MODEL, **training)
    return job.model_copy(update={"train_files": tuple(files)})


def _read(job: TrainJob, rank: int = 0, ranks: int = 1, first: int = 0) -> list[MacroBatch]:
    return list(ExampleReader(job, ITEMS, rank, ranks).read(first))


def _items(macro: list[MacroBatch]) -> list[list[list[int]]]:
    return [[micro.items.tolist() for micro in m.micro] for m in macro]


def test_every_row_once_an_epoch_in_a_new_order(tmp_path: Path) -> None:
    job = _job(tmp_path, [37, 3, 20], batch_size=7, accumulate=3, epochs=3)
    macros = _read(job)
    orders = []
    for epoch in range(3):
        flat = [i for m in macros if m.epoch == epoch for micro in m.micro for i in micro.items]
        assert sorted(flat) == list(range(60))
        orders.append([int(i) for i in flat])
    assert orders[0] != orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])
    # 60 rows are 8 micro-batches of 7 and one of 4; the last macro-batch is full here.
    assert [[len(x.items) for x in m.micro] for m in macros[:3]] == [[7] * 3, [7] * 3, [7, 7, 4]]
    assert [m.step for m in macros] == list(range(9))
    for m in macros:
        assert m.examples == sum(len(micro.items) for micro in m.micro)
        assert m.weight == sum(1.0 + int(i) % 2 for micro in m.micro for i in micro.items)


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (1, 2), (2, 3)])
def test_columns_stay_together(tmp_path: Path, rank: int, ranks: int) -> None:
    job = _job(tmp_path, [11, 9], batch_size=6, accumulate=2)
    for macro in _read(job, rank, ranks):
        for micro in macro.micro:
            users = micro.local.users
            for row, item in enumerate(micro.local.item.tolist()):
                history, colour = users.history.slice(row, row + 1), users.features["colour"]
                assert history.values.tolist() == [item] * (item % 3)
                assert colour.slice(row, row + 1).values.tolist() == [item % 4, 1]
                assert int(users.user[row]) == item % 5
                assert float(micro.local.weight[row]) == 1.0 + item % 2


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_share_the_same_sequence(tmp_path: Path, ranks: int) -> None:
    # 23 rows in micro-batches of 4 leave a last one of 3: fewer rows than five ranks.
    job = _job(tmp_path, [10, 13], batch_size=4, accumulate=2, epochs=2)
    alone = _read(job)
    together = [_read(job, rank, ranks) for rank in range(ranks)]
    for number, macro in enumerate(alone):
        for place, micro in enumerate(macro.micro):
            shares = [reads[number].micro[place] for reads in together]
            assert [i for s in shares for i in s.local.item.tolist()] == micro.items.tolist()
            starts = [s.start for s in shares]
            sizes = [len(s.local) for s in shares]
            assert starts == [sum(sizes[:r]) for r in range(ranks)]
            assert all(s.items.tolist() == micro.items.tolist() for s in shares)
        assert all(reads[number].weight == macro.weight for reads in together)
    assert all(len(reads) == len(alone) for reads in together)


def test_resume_continues_where_it_was(tmp_path: Path) -> None:
    job = _job(tmp_path, [10, 13, 2], batch_size=3, accumulate=2, epochs=2)
    whole = _items(_read(job))
    for first in range(len(whole) + 1):
        assert _items(_read(job, first=first)) == whole[first:]


def test_ranks_resume_where_they_were(tmp_path: Path) -> None:
    job = _job(tmp_path, [10, 13, 2], batch_size=3, accumulate=2, epochs=2)
    whole = _read(job, 1, 2)
    for first in range(len(whole) + 1):
        again = _read(job, 1, 2, first)
        own = [[m.local.item.tolist() for m in macro.micro] for macro in again]
        assert own == [[m.local.item.tolist() for m in macro.micro] for macro in whole[first:]]


def test_reading_in_turn_is_the_same(tmp_path: Path) -> None:
    job = _job(tmp_path, [10, 13, 2], batch_size=3, accumulate=2, epochs=2)
    training = job.training.model_copy(update={"read_ahead": 0})
    in_turn = job.model_copy(update={"training": training})
    before = threading.active_count()
    reading = ExampleReader(in_turn, ITEMS).read(2)
    first = next(reading)
    assert threading.active_count() == before
    assert _items([first, *reading]) == _items(_read(job, first=2))


def test_seed_decides_the_order(tmp_path: Path) -> None:
    job = _job(tmp_path, [30], batch_size=10)
    other = job.model_copy(update={"training": job.training.model_copy(update={"seed": 1})})
    assert _items(_read(job)) == _items(_read(job))
    assert _items(_read(job)) != _items(_read(other))


def _with_column(file: str, name: str, values: pa.Array) -> None:
    table = pq.read_table(file)
    pq.write_table(table.set_column(table.column_names.index(name), name, values), file)


@pytest.mark.parametrize(
    ("column", "values", "message", "row"),
    [
        ("item", pa.array([0, 1, ITEMS], pa.int32()), "'item' has 1000", 2),
        ("user", pa.array([0, 5, 0], pa.int64()), "'user' has 5", 1),
        ("history", pa.array([[], [3], [1, -1]], pa.list_(pa.int32())), "'history' has -1", 2),
        ("colour", pa.array([[7], [0, 0], [0]], pa.list_(pa.int32())), "'colour' has 7", 0),
        ("weight", pa.array([1.0, float("nan"), 1.0], pa.float32()), "weight nan", 1),
        ("item", pa.array([0, None, 2], pa.int32()), "'item' is null in row 1", None),
        ("item", pa.array(["a", "b", "c"]), "integers are needed", None),
    ],
)
def test_unusable_values_name_file_and_row(
    tmp_path: Path, column: str, values: pa.Array, message: str, row: int | None
) -> None:
    job = _job(tmp_path, [4, 3], batch_size=4)
    _with_column(job.train_files[1], column, values)
    with pytest.raises(ExamplesError, match=message) as caught:
        _read(job)
    assert caught.value.file == job.train_files[1]
    assert caught.value.row == row


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    job = _job(tmp_path, [4, 3], batch_size=4)
    path = Path(job.train_files[1])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ExamplesError, match=r"shard-1\.parquet"):
        _read(job)
    path.unlink()
    with pytest.raises(ExamplesError, match=r"shard-1\.parquet"):
        _read(job)
    table = pq.read_table(job.train_files[0]).drop_columns(["history"])
    pq.write_table(table, path)
    with pytest.raises(ExamplesError, match="history"):
        _read(job)


def test_no_examples(tmp_path: Path) -> None:
    with pytest.raises(ExamplesError, match="no training examples"):
        _read(_job(tmp_path, [0]))


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_giving_up_ends_the_thread(tmp_path: Path, taken: int) -> None:
    job = _job(tmp_path, [50] * 4, batch_size=2, accumulate=1, read_ahead=1)
    reading = ExampleReader(job, ITEMS).read()
    for _ in range(taken):
        next(reading)
    reading.close()
    assert not any(thread.name == "example-reader" for thread in threading.enumerate())
