"""Protects the codes: a history reads the codes of the items it names, newest last, cut to the
feature's length; corpora that cannot be coded are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from models.batch import UserInputs
from models.config import FeatureSettings, ModelSettings, TowerSettings
from models.corpus import Corpus
from models.encoder import Encoder
from models.errors import ExamplesError
from models.initial import initial_rows
from models.jagged import Jagged

MODEL = ModelSettings(
    user=TowerSettings(
        features=(
            FeatureSettings(name="recent", table="item", kind="history", max_length=2),
            FeatureSettings(name="longer", table="item", kind="history", max_length=9),
        )
    ),
    item=TowerSettings(
        features=(
            FeatureSettings(name="code", table="item"),
            FeatureSettings(name="tags", table="tag", kind="list"),
        )
    ),
)


def _corpus(folder: Path, codes: list[list[int]], rows: int = 9) -> Corpus:
    file = str(folder / "items.parquet")
    kind = pa.list_(pa.int32())
    pq.write_table(
        pa.table(
            {
                "train_count": pa.array([4, 1, 0][: len(codes)], pa.int64()),
                "code": pa.array(codes, kind),
                "tags": pa.array([[1], [], [2, 3]][: len(codes)], kind),
            }
        ),
        file,
    )
    return Corpus.from_parquet(file, MODEL, {"item": rows, "tag": 4})


def test_codes_by_hand(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path, [[5, 0], [1, 2], [8, 0]])
    encoder = Encoder(MODEL, corpus, {"item": 2, "tag": 1})
    users = UserInputs(torch.zeros(2), {}, Jagged.from_lists([[0, 1, 2], [1]]))
    found = encoder.user_codes(users)
    assert found["recent"].values.tolist() == [1, 2, 8, 0, 1, 2]
    assert found["recent"].offsets.tolist() == [0, 4, 6]
    assert found["longer"].values.tolist() == [5, 0, 1, 2, 8, 0, 1, 2]
    items = encoder.item_codes(torch.tensor([2, 0, 2]))
    assert items["code"].values.tolist() == [8, 0, 5, 0, 8, 0]
    assert items["tags"].values.tolist() == [2, 3, 1, 2, 3]


def test_share_of_train_interactions(tmp_path: Path) -> None:
    share = _corpus(tmp_path, [[5, 0], [1, 2], [8, 0]]).log_share().exp()
    # 4, 1, and 0 counted as 1: finite for an item that cannot be drawn.
    torch.testing.assert_close(share, torch.tensor([4, 1, 1]) / 6)


def test_codes_outside_the_table_name_the_row(tmp_path: Path) -> None:
    with pytest.raises(ExamplesError, match="'code' has code 8, but table 'item' has 8") as caught:
        _corpus(tmp_path, [[5, 0], [1, 2], [8, 0]], rows=8)
    assert caught.value.row == 2


def test_items_need_exactly_one_id(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path, [[5, 0], [], [8, 0]])
    with pytest.raises(ValueError, match="exactly one ID"):
        Encoder(MODEL, corpus, {"item": 2, "tag": 1})


def test_initial_rows_do_not_depend_on_the_cut() -> None:
    whole = initial_rows("item", 3, 42, 0, 40_000)
    parts = [(0, 1), (1, 16_384), (16_384, 20_000), (20_000, 40_000)]
    assert torch.equal(torch.cat([initial_rows("item", 3, 42, a, b) for a, b in parts]), whole)
    assert whole[0].tolist() == [0.0] * 3
    assert float(whole.std()) == pytest.approx(0.1, rel=0.01)
    assert not torch.equal(initial_rows("user", 3, 42, 0, 9), whole[:9])
    assert not torch.equal(initial_rows("item", 3, 43, 0, 9), whole[:9])


def test_neighbours_have_the_codes_of_their_ids(tmp_path: Path) -> None:
    model = MODEL.model_copy(
        update={
            "item": TowerSettings(
                features=(
                    FeatureSettings(name="near", table="item", kind="neighbours"),
                    FeatureSettings(name="code", table="item"),
                )
            )
        }
    )

    def corpus(near: list[list[int]]) -> Corpus:
        kind = pa.list_(pa.int32())
        columns = {
            "train_count": pa.array([4, 1, 0], pa.int64()),
            "code": pa.array([[5, 0], [1, 2], [8, 0]], kind),
            "near": pa.array(near, kind),
        }
        pq.write_table(pa.table(columns), tmp_path / "items.parquet")
        return Corpus.from_parquet(str(tmp_path / "items.parquet"), model, {"item": 9})

    codes = Encoder(model, corpus([[1, 2], [], [0]]), {"item": 2}).item_codes(
        torch.tensor([2, 1, 0])
    )
    assert codes["near"].values.tolist() == [5, 0, 1, 2, 8, 0]
    assert codes["near"].offsets.tolist() == [0, 2, 2, 6]
    with pytest.raises(ExamplesError, match="column 'near' has code 3, but there are 3 items"):
        corpus([[1], [3], []])
