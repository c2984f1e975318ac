"""Protects the point of it all: on users with a taste, the two-tower model finds what they take
next far better than popularity does, and the traditional baseline finds it clearly better."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from models.bootstrap import paired_bootstrap
from models.bundle import Kind, Recommender, write_bundle
from models.jagged import Jagged
from models.metrics import Floats, per_user_metrics
from models.trainer import train
from tests.models.sinks import Recorder
from tests.models.worlds import World, make_job, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("quality"), num_users=400, num_items=400, clusters=8)


def _recall(world: World, folder: Path, kind: Kind) -> Floats:
    weights = None
    if kind != "popularity":
        job = make_job(world, folder, kind=kind, epochs=3, batch_size=128, accumulate=1)
        recorder = Recorder()
        summary = train(job, recorder)
        weights = job.output_dir
        assert summary.steps == recorder.steps[-1][0]
        assert recorder.metrics[-1][1]["loss"] < recorder.metrics[0][1]["loss"]
    write_bundle(folder / "b", kind=kind, weights_dir=weights, corpus_file=world.corpus_file)
    recommender = Recommender.load(folder / "b")
    test = pq.read_table(world.test_file)
    indices, _ = recommender.top_k(recommender.inputs(test), 20)
    return per_user_metrics(indices, Jagged.from_arrow(test["targets"]), (20,))["recall_at_20"]


@pytest.mark.parametrize(("kind", "margin"), [("two_tower", 0.15), ("traditional", 0.05)])
def test_beats_popularity(world: World, tmp_path: Path, kind: Kind, margin: float) -> None:
    popularity = _recall(world, tmp_path / "p", "popularity")
    found = paired_bootstrap(_recall(world, tmp_path / "t", kind), popularity)
    assert found.lower > margin, found
