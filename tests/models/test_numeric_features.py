"""Protects numeric features: normalised alike in training and serving, by statistics that hand
calculation confirms, and refused where a value is no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from models.batch import numbers
from models.bundle import Recommender, write_bundle
from models.config import FeatureSettings, ModelSettings, TowerSettings, TrainJob
from models.errors import ExamplesError
from models.numeric_features import Normaliser, NumericStatistics, measure_features
from models.trainer import train
from models.weights import read_weights_file
from tests.models.reference import train_reference
from tests.models.sinks import Recorder
from tests.models.test_accumulation import _largest_difference
from tests.models.worlds import World, make_job, make_model, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("numeric")
    return make_world(folder, num_users=30, num_items=25, events_per_user=6)


def _model() -> ModelSettings:
    """IDs and tags, the age of the user and the price of the item."""
    model = make_model()

    def with_number(tower: TowerSettings, name: str) -> TowerSettings:
        # Not last: numbers stand behind the other features wherever they are declared.
        number = FeatureSettings(name=name, kind="numeric")
        return tower.model_copy(update={"features": (number, *tower.features)})

    return model.model_copy(
        update={"user": with_number(model.user, "age"), "item": with_number(model.item, "price")}
    )


def _job(world: World, output: Path, **changes: Any) -> TrainJob:
    settings = {"batch_size": 17, "optimizer": {"eps": 1e-4}, "epochs": 2, **changes}
    return make_job(world, output, model=_model(), **settings)


def test_values_are_normalised_and_missing_ones_are_the_mean() -> None:
    statistics = {
        "age": NumericStatistics(mean=30.0, std=10.0, missing=0, rows=9),
        "time": NumericStatistics(mean=1.7e9, std=0.5, missing=0, rows=9),
    }
    values = {
        "age": torch.tensor([40.0, torch.nan, 25.0], dtype=torch.float64),
        "time": torch.tensor([1.7e9 + 1, 1.7e9, torch.nan], dtype=torch.float64),
    }
    found = Normaliser(["age", "time"], statistics)(values)
    assert found is not None
    assert found.dtype == torch.float32
    assert found.tolist() == [[1.0, 2.0], [0.0, 0.0], [-0.5, 0.0]]
    assert Normaliser([], {})({}) is None


def test_statistics_are_those_of_all_training_data_at_once(world: World, tmp_path: Path) -> None:
    found = measure_features(_job(world, tmp_path))
    ages = [
        age for file in world.train_files for age in pq.read_table(file).column("age").to_pylist()
    ]
    known = np.array([age for age in ages if age is not None])
    age = found["user"]["age"]
    assert (age.rows, age.missing) == (len(ages), len(ages) - known.size)
    assert age.missing > 0
    assert age.mean == pytest.approx(known.mean(), rel=1e-12)
    assert age.std == pytest.approx(known.std(), rel=1e-12)
    items = pq.read_table(world.corpus_file).to_pylist()
    trained = [item for item in items if item["train_count"] > 0]
    prices = np.array([i["price"] for i in trained if i["price"] is not None])
    price = found["item"]["price"]
    assert (price.rows, price.missing) == (len(trained), len(trained) - prices.size)
    assert price.mean == pytest.approx(prices.mean(), rel=1e-12)
    assert price.std == pytest.approx(prices.std(), rel=1e-12)


def test_a_feature_without_spread_or_values(world: World, tmp_path: Path) -> None:
    job = _job(world, tmp_path)
    corpus = pq.read_table(job.corpus_file)
    place = corpus.schema.get_field_index("price")
    for values, expected in (
        (pa.array([7.5] * corpus.num_rows), (7.5, 1.0, 0)),
        (pa.nulls(corpus.num_rows, pa.float64()), (0.0, 1.0, None)),
    ):
        path = tmp_path / "items.parquet"
        pq.write_table(corpus.set_column(place, "price", values), path)
        found = measure_features(job.model_copy(update={"corpus_file": str(path)}))
        price = found["item"]["price"]
        missing = price.rows if expected[2] is None else expected[2]
        assert (price.mean, price.std, price.missing) == (*expected[:2], missing)


def test_training_equals_plain_pytorch(world: World, tmp_path: Path) -> None:
    job = _job(world, tmp_path)
    recorder = Recorder()
    train(job, recorder)
    assert _largest_difference(job) < 1e-5
    assert "numeric feature user.age: mean" in dict(recorder.texts)["training"]
    # The comparison must be able to fail: numbers have an influence.
    flat = tmp_path / "flat"
    flat.mkdir()
    corpus = pq.read_table(job.corpus_file)
    place = corpus.schema.get_field_index("price")
    nothing = pa.nulls(corpus.num_rows, pa.float64())
    pq.write_table(corpus.set_column(place, "price", nothing), flat / "i.parquet")
    tables, _ = train_reference(job.model_copy(update={"corpus_file": str(flat / "i.parquet")}))
    other, _ = train_reference(job)
    assert float((tables["item"] - other["item"]).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", ["two_tower", "traditional"])
def test_serving_normalises_as_training_did(world: World, tmp_path: Path, kind: Any) -> None:
    job = _job(world, tmp_path, kind=kind)
    train(job, Recorder())
    weights = read_weights_file(Path(job.output_dir))
    assert weights is not None
    age = weights.trained.numeric["user"]["age"]
    write_bundle(
        tmp_path / "bundle", kind=kind, weights_dir=job.output_dir, corpus_file=job.corpus_file
    )
    model = Recommender.load(tmp_path / "bundle")
    users = pq.read_table(world.users_file).slice(0, 3)
    place = users.schema.get_field_index("age")

    def vectors(*ages: float | None) -> torch.Tensor:
        column = pa.array(ages, pa.float64())
        return model.user_vectors(model.inputs(users.set_column(place, "age", column)))

    mean, other = vectors(age.mean, age.mean, age.mean), vectors(None, age.mean + age.std, 0.0)
    torch.testing.assert_close(other[0], mean[0], rtol=1e-6, atol=1e-7)
    assert float((other[1] - mean[1]).abs().max()) > 1e-4


def test_values_that_are_not_finite_are_refused(world: World, tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([1.0, None, float("inf")])})
    with pytest.raises(ValueError, match="column 'x' is inf in row 2"):
        numbers(table, "x")
    with pytest.raises(ValueError, match="column 'x' is nan in row 0"):
        numbers(pa.table({"x": pa.array([float("nan")])}), "x")
    with pytest.raises(ValueError, match="numbers are needed, not string"):
        numbers(pa.table({"x": ["1"]}), "x")
    assert numbers(pa.table({"x": pa.array([True, None])}), "x").nan_to_num(-1).tolist() == [1, -1]
    job = _job(world, tmp_path)
    shard = pq.read_table(world.train_files[0])
    ages = shard.column("age").to_pylist()
    ages[4] = float("-inf")
    path = tmp_path / "train.parquet"
    place = shard.schema.get_field_index("age")
    pq.write_table(shard.set_column(place, "age", pa.array(ages, pa.float64())), path)
    with pytest.raises(ExamplesError, match="'age' is -inf in row 4"):
        measure_features(job.model_copy(update={"train_files": (str(path),)}))


def test_a_tower_of_numbers_alone_and_a_number_with_a_table_are_refused() -> None:
    number = FeatureSettings(name="age", kind="numeric")
    with pytest.raises(ValueError, match="at least one feature with a table"):
        TowerSettings(features=(number,))
    with pytest.raises(ValueError, match="has no table"):
        FeatureSettings(name="age", kind="numeric", table="user")
    with pytest.raises(ValueError, match="needs a table"):
        FeatureSettings(name="country")
