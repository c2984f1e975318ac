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
from tasks.contract_files import contract_of
from tasks.errors import ConfigError, ContractError
from tasks.lake import Lake
from tests.tasks.longtail.raw_lake import run_steps
from tests.tasks.longtail.world import World
from tests.tasks.validated_lake import CONTRACTS

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


def test_warn_lets_bad_shards_pass_and_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = _write(tmp_path, _shard(item=pa.array([-1, 4], pa.int32())))
    check_examples(lake, "examples/train", DataSettings(validation="warn"), DAY)
    assert "range" in capsys.readouterr().err


def test_a_folder_of_ones_own_may_leave_out_this_contract(tmp_path: Path) -> None:
    lake = _write(tmp_path, _shard(user=pa.array([None, 4])))
    (tmp_path / "contracts").mkdir()
    settings = DataSettings(contracts=str(tmp_path / "contracts"))
    with pytest.raises(ContractError, match=r"required +user"):
        check_examples(lake, "examples/train", settings, DAY)
    with pytest.raises(ConfigError, match="the data set items has no contract"):
        contract_of("items", settings)


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


def test_examples_that_break_their_contract_are_not_published(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    contract = (CONTRACTS / "examples.odcs.yaml").read_text()
    own = tmp_path / "examples.odcs.yaml"
    own.write_text(contract.replace("name: weight\n", "name: weight\n        unique: true\n"))
    spec = World(root).spec(data={"contracts": str(tmp_path)})
    with pytest.raises(ContractError, match=r"unique +weight"):
        run_steps(spec)
    assert not [path for path in (root / "examples").rglob("*") if path.is_file()]
    assert spec.result("examples") is None
    own.unlink()  # the shipped one takes its place
    published = Lake(str(root)).open_published(run_steps(spec, "examples").outputs["examples"])
    assert published.manifest.rows > 0
