"""The examples' own contract is checked before they are published, on footers and a sample.

Protects training from a fault of the pipeline itself: an index that points nowhere, a weight that
is no number.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import contract_examples
from tasks.config import DataSettings
from tasks.contract_examples import check_examples
from tasks.errors import ContractError
from tasks.lake import Lake

DAY = date(2026, 1, 2)
BLOCK = DataSettings(validation="block")


def _shard(**columns: pa.Array) -> pa.Table:
    table = {
        "user": pa.array([0, 1]),
        "item": pa.array([3, 4], pa.int32()),
        "history": pa.array([[], [2, 3]], pa.list_(pa.int32())),
        "timestamp": pa.array([1, 2]),
        "weight": pa.array([1, 0.5], pa.float32()),
    }
    return pa.table(table | columns)


def _write(root: Path, *shards: pa.Table) -> Lake:
    folder = root / "examples" / "train"
    folder.mkdir(parents=True)
    for n, shard in enumerate(shards):
        pq.write_table(shard, folder / f"part-{n:05d}.parquet")
    return Lake(str(root))


def test_good_shards_pass(tmp_path: Path) -> None:
    other = _shard(timestamp=pa.array([3, 4]))
    check_examples(_write(tmp_path, _shard(), other), "examples/train", BLOCK, DAY)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"item": pa.array([-1, 4], pa.int32())}, r"range +item +part-00001\.parquet"),
        ({"user": pa.array([None, 4])}, r"required +user"),
        ({"item": pa.array([3, 4])}, r"type +item .* int64"),
        ({"weight": pa.array([float("nan"), 1], pa.float32())}, r"finite +weight"),
        ({"history": pa.array([[-1], []], pa.list_(pa.int32()))}, r"range +history"),
    ],
)
def test_a_bad_shard_stops_the_step(bad: dict[str, pa.Array], words: str, tmp_path: Path) -> None:
    lake = _write(tmp_path, _shard(), _shard(**bad))
    with pytest.raises(ContractError, match=words):
        check_examples(lake, "examples/train", BLOCK, DAY)
    check_examples(lake, "examples/train", DataSettings(validation="off"), DAY)


def test_footers_of_all_shards_are_read_and_values_of_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_examples, "SAMPLE_ROWS", 2)
    bad_value = _shard(item=pa.array([-1, 4], pa.int32()))
    lake = _write(tmp_path / "value", _shard(), bad_value)
    check_examples(lake, "examples/train", BLOCK, DAY)
    lake = _write(tmp_path / "null", _shard(), _shard(item=pa.array([3, 4])))
    with pytest.raises(ContractError, match=r"type +item +part-00001"):
        check_examples(lake, "examples/train", BLOCK, DAY)
