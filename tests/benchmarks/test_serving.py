"""The benchmark of serving: its made model computes what it says, and its report has every figure.
For ten thousand users the HTTP answer is the offline evaluation's, unseen users and items too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import torch

from benchmarks import serving
from benchmarks.serving_world import DIM, Shape, World
from models.bundle import Recommender
from models.published_bundle import publish_bundle
from models.serving_settings import ServingSettings
from tasks.gate import same_answer
from tasks.serving.fallback import top_k

SMALL = Shape(items=3000, users=200, tastes=20)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, World]:
    return tmp_path_factory.mktemp("world"), World(SMALL)


@pytest.mark.parametrize(("kind", "rows"), [("full", 3002), ("sparse", 331)])
def test_the_towers_add_their_inputs(world: tuple[Path, World], kind: str, rows: int) -> None:
    folder, made = world
    model = Recommender.load(made.write(folder, kind))  # type: ignore[arg-type]
    assert model.bundle.trained is not None
    assert model.bundle.trained.table_rows["item"] == rows
    assert model.users is not None
    table = {name: stored[:] for name, stored in model.tables.items()}
    user, item = 7, 2999
    history = model.corpus["iid"].take(pa.array(made.history[user])).to_pylist()
    recent = torch.stack([table["item"][code] for (code,) in history]).mean(0)
    (code,) = model.users["uid"][user].as_py()
    wanted = torch.nn.functional.normalize(table["user"][code] + recent, dim=0)
    found = model.user_vectors(model.inputs(model.users.slice(user, 1)))[0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    (code,) = model.corpus["iid"][item].as_py()
    tags = table["tag"][model.corpus["tags"][item].as_py()].mean(0)
    wanted = torch.nn.functional.normalize(table["item"][code] + tags, dim=0)
    torch.testing.assert_close(model.item_vectors[item], wanted, atol=1e-5, rtol=1e-5)
    assert model.item_vectors.shape == (SMALL.items, DIM)


@pytest.mark.slow
@pytest.mark.integration
def test_ten_thousand_users_are_answered_as_offline(tmp_path: Path) -> None:
    made = World(Shape(items=4000, users=9000, tastes=40))
    trained = made.write(tmp_path, "sparse")
    publish_bundle(trained, tmp_path / "served", ServingSettings())
    model = Recommender.load(trained)
    assert model.users is not None
    known, known_scores, _ = top_k(model, model.inputs(model.users), 20)
    ids = model.corpus["item_id"]
    rng = np.random.default_rng(8)
    histories = [rng.integers(0, 4000, 1 + n % 30).tolist() for n in range(1000)]
    lists = pa.array(histories, pa.list_(pa.int32()))
    unseen = pa.table(
        {
            "user": pa.array([-1] * 1000, pa.int64()),
            "uid": pa.array([[1]] * 1000, pa.list_(pa.int32())),  # the only bucket
            "history": lists,
            "seen": lists,
        }
    )
    new, new_scores, _ = top_k(model, model.inputs(unseen), 20)
    asked: list[dict[str, Any]]
    asked = [{"user_id": int(user), "k": 20} for user in model.users["user_id"].to_pylist()]
    # Items that the model does not know say nothing.
    asked += [
        {"user_id": -1 - n, "k": 20, "history": [-5, *ids.take(pa.array(h)).to_pylist()]}
        for n, h in enumerate(histories)
    ]
    wanted = [ids.take(pa.array(row)).to_pylist() for row in torch.cat([known, new]).numpy()]
    with serving._server(tmp_path, tmp_path / "served") as port:
        found = []
        for first in range(0, len(asked), 250):
            answer = httpx.post(
                f"http://127.0.0.1:{port}/recommendations",
                json={"requests": asked[first : first + 250]},
                timeout=60,
            ).json()
            found += [one["items"] for one in answer["answers"]]
            assert answer["unknown_users"] == answer["unknown_items"]
    assert len(found) == len(wanted) == 10_000
    scores = torch.cat([known_scores, new_scores]).tolist()
    for items, ids_wanted, scores_wanted in zip(found, wanted, scores, strict=True):
        answered = [item["item_id"] for item in items], [item["score"] for item in items]
        assert same_answer(*answered, ids_wanted, scores_wanted)


@pytest.mark.slow
@pytest.mark.integration
def test_the_report_has_every_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    arguments = "--items 20k --users 500 --tastes 40 --runs 1 --asked 20 --seconds 1"
    serving.main([*arguments.split(), "--cache", str(tmp_path)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["ann_recall_at_100"] >= 0.95
    for name in ("p99_ms_ann_int8", "latency_ratio_vs_unsparsified", "ratio_vs_faiss_flat"):
        assert 0 < report[name] < 100
    assert report["requests_per_second"] > 1
    assert report["bundle_mib"]["unsparsified"] >= report["bundle_mib"]["exact_int8"]
