"""Protects the baseline: its full tables, one step worked out in float64, and one process."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from models.config import FeatureSettings
from models.corpus import FULL_ITEM_TABLE, FULL_USER_TABLE, Corpus
from models.encoder import Encoder
from models.initial import initial_rows
from models.reader import ExampleReader
from models.seeds import generator_for
from models.traditional import with_full_tables
from models.trainer import train
from models.two_tower import TwoTower
from tests.models.sinks import Recorder
from tests.models.worlds import make_job, make_world


def test_ids_and_histories_move_to_full_tables(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", num_users=30, num_items=20)
    job = make_job(world, tmp_path)
    # A list on the user table is an attribute, not the user's ID: it stays.
    friends = FeatureSettings(name="friends", table="user", kind="list")
    user = job.model.user.model_copy(update={"features": (*job.model.user.features, friends)})
    job = job.model_copy(update={"model": job.model.model_copy(update={"user": user})})
    full = with_full_tables(job, world.num_items)
    tables = {f.name: f.table for t in (full.model.user, full.model.item) for f in t.features}
    assert tables == {
        "user_id_code": FULL_USER_TABLE,
        "recent": FULL_ITEM_TABLE,
        "friends": "user",
        "item_id_code": FULL_ITEM_TABLE,
        "tags": "tag",
    }
    assert full.table_rows == {
        FULL_USER_TABLE: 31, FULL_ITEM_TABLE: 21, "user": 32, "tag": world.table_rows["tag"],
    }  # fmt: skip
    assert set(full.tables) == set(full.table_hashes) == set(full.table_rows)
    assert full.tables[FULL_ITEM_TABLE].dim == job.tables["item"].dim


def test_neighbours_are_left_out(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", num_users=30, num_items=20)
    job = make_job(world, tmp_path)
    tower = job.model.item
    near = FeatureSettings(name="near", table=tower.features[0].table, kind="neighbours")
    item = tower.model_copy(update={"features": (*tower.features, near)})
    asked = job.model_copy(update={"model": job.model.model_copy(update={"item": item})})
    full = with_full_tables(asked, world.num_items)
    assert full.model == with_full_tables(job, world.num_items).model


def test_one_step_in_float64(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", num_users=6, num_items=8, events_per_user=5)
    # One macro-batch of one micro-batch holds everything: a single step.
    job = make_job(world, tmp_path, kind="traditional", batch_size=1000, accumulate=1)
    train(job, Recorder())
    full = with_full_tables(job, world.num_items)
    seed, settings = job.training.seed, job.training.optimizer
    tables = {
        name: initial_rows(name, t.dim, seed, 0, full.table_rows[name]).double().requires_grad_()
        for name, t in full.tables.items()
    }
    towers = TwoTower(full.model, full.tables, full.table_hashes, seed).double()
    corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
    encoder = Encoder(full.model, corpus, full.table_hashes)
    (macro,) = ExampleReader(full, world.num_items).read()
    batch = macro.micro[0].local
    drawn = torch.randint(world.num_items, (32,), generator=generator_for(seed, "uniform", 0, 0))
    users = towers.user_vectors(tables, encoder.user_codes(batch.users))
    items = towers.item_vectors(tables, encoder.item_codes(torch.arange(world.num_items)))
    scores = users @ items.T / job.model.temperature
    losses = []
    for row, own in enumerate(batch.item.tolist()):
        others = [scores[row, j] for j in drawn.tolist() if j != own]
        losses.append(torch.stack([scores[row, own], *others]).logsumexp(0) - scores[row, own])
    loss = (torch.stack(losses) * batch.weight.double()).sum() / batch.weight.double().sum()
    loss.backward()
    folder = Path(job.output_dir)
    for name, table in tables.items():
        assert table.grad is not None
        gradient = table.grad.clone()
        gradient[0] = 0
        rate = settings.learning_rate * settings.sparse_lr_scale
        expected = table.detach() - rate * gradient / (gradient.abs() + settings.eps)
        found = load_file(folder / f"tables/{name}.safetensors")["weight"].double()
        # Where a gradient is all but zero its sign, and so Adagrad's first step, is rounding.
        certain = (gradient.abs() > 1e-6) | (gradient == 0)
        torch.testing.assert_close(found[certain], expected[certain], rtol=1e-4, atol=1e-5)
        assert bool((found[0] == 0).all())


def test_needs_no_torchrec(tmp_path: Path) -> None:
    # Read the source of what it imports: the test process itself has TorchRec loaded already.
    import subprocess
    import sys

    code = "import models.traditional, models.trainer, sys; print('torchrec' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "False"


def test_unknown_users_have_the_padding_row(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", num_users=6, num_items=8)
    full = with_full_tables(make_job(world, tmp_path), world.num_items)
    corpus = Corpus.from_parquet(world.corpus_file, full.model, full.table_rows)
    encoder = Encoder(full.model, corpus, full.table_hashes)
    from models.batch import UserInputs

    users = UserInputs.from_arrow(pq.read_table(world.users_file), full.model)
    unknown = UserInputs(torch.full_like(users.user, -1), users.features, users.history)
    assert encoder.user_codes(users)["user_id_code"].values.tolist() == [1, 2, 3, 4, 5, 6]
    assert encoder.user_codes(unknown)["user_id_code"].values.tolist() == [0] * 6


def test_two_ranks_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from models import collectives, traditional
    from models.errors import ModelError
    from models.stopping import StopRequest

    world = make_world(tmp_path / "w", num_users=6, num_items=8)
    monkeypatch.setattr(collectives, "world_size", lambda: 2)
    with pytest.raises(ModelError, match="one process"):
        traditional.train_traditional(
            make_job(world, tmp_path), Recorder(), torch.device("cpu"), StopRequest()
        )
