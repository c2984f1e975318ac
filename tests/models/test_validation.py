"""Protects the validation: only the window's own last events are held out, each example is either
trained on or validated on, recall is that of brute force, and it never changes a training unless
early stopping asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from models.bundle import Recommender, write_bundle
from models.config import TrainingSettings, TrainJob
from models.errors import ExamplesError
from models.reader import ExampleReader
from models.row_selection import select_rows
from models.trainer import train
from models.validation import Validation, ValidationSchedule
from tests.models.sinks import Recorder
from tests.models.test_trainer import StopsAt, _weights
from tests.models.workers import run
from tests.models.worlds import World, make_job, make_model, make_world

CPU = torch.device("cpu")
RECALL = "validation_recall_at_5"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("validation")
    return make_world(folder, num_users=60, num_items=50, events_per_user=12)


def _job(world: World, output: Path, **changes: Any) -> TrainJob:
    settings: dict[str, Any] = {
        "batch_size": 32,
        "accumulate": 2,
        "epochs": 2,
        "log_every": 1,
        "checkpoint_every": 4,
        "validation": {"users": 20, "max_share": 0.5, "k": 5},
        **changes,
    }
    return make_job(world, output, **settings)


def _examples(world: World) -> list[dict[str, Any]]:
    return [
        {**row, "shard": shard, "row": number}
        for shard, file in enumerate(world.train_files)
        for number, row in enumerate(pq.read_table(file).to_pylist())
    ]


def test_last_events_that_are_new_are_held_out(world: World, tmp_path: Path) -> None:
    job = _job(world, tmp_path)
    selection = select_rows(job)
    assert selection.users is not None
    assert selection.size == selection.users.num_rows == 20
    examples = _examples(world)
    by_place = {(e["shard"], e["row"]): e for e in examples}
    held = [by_place[shard, int(row)] for shard, rows in selection.held_out.items() for row in rows]
    users = selection.users.to_pylist()
    assert [u["user"] for u in users] == [e["user"] for e in held]
    assert len({e["user"] for e in held}) == 20
    for event, user in zip(held, users, strict=True):
        of_user = [e for e in examples if e["user"] == event["user"]]
        others = {e["item"] for e in of_user if e is not event}
        assert event["timestamp"] == max(e["timestamp"] for e in of_user)
        assert event["item"] not in others
        assert user["targets"] == [event["item"]]
        assert user["seen"] == sorted(others)
        assert user["history"] == event["history"]
    reader = ExampleReader(job, world.num_items, selection=selection)
    epoch = [m for m in reader.read() if m.epoch == 0]
    trained = sorted(
        (int(user), int(item), len(batch.users.history.slice(i, i + 1).values))
        for macro in epoch
        for batch in (micro.local for micro in macro.micro)
        for i, (user, item) in enumerate(zip(batch.users.user, batch.item, strict=True))
    )
    left = [e for e in examples if not any(e is h for h in held)]
    assert trained == sorted((e["user"], e["item"], len(e["history"])) for e in left)


def test_the_choice_depends_on_seed_and_files_only(world: World, tmp_path: Path) -> None:
    def held(**changes: Any) -> list[list[int]]:
        return [r.tolist() for r in select_rows(_job(world, tmp_path, **changes)).held_out.values()]

    assert held() == held(batch_size=16)
    assert held() != held(seed=7)
    share = select_rows(_job(world, tmp_path, validation={"users": 20, "max_share": 0.01}))
    assert share.size == int(0.01 * len(_examples(world)))
    assert select_rows(_job(world, tmp_path, validation={"users": 0})).users is None


class _Fixed:
    def __init__(self, users: torch.Tensor, items: torch.Tensor) -> None:
        self.users, self.items = users, items

    def user_vectors(self, users: Any) -> torch.Tensor:
        return self.users[users.user]

    def item_vectors(self, items: torch.Tensor) -> torch.Tensor:
        return self.items[items]


def test_recall_is_that_of_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several targets a user, seen items, items that score alike, and several blocks."""
    monkeypatch.setattr("models.validation._ITEM_BLOCK", 7)
    monkeypatch.setattr("models.validation._USER_BLOCK", 3)
    rng = np.random.default_rng(5)
    users, items, k = 12, 40, 8
    # Few different vectors: many scores are equal.
    vectors = torch.from_numpy(rng.integers(-1, 2, (items, 3)).astype(np.float32)) / 3
    of_users = torch.from_numpy(rng.integers(-1, 2, (users, 3)).astype(np.float32)) / 3
    prior = torch.from_numpy(rng.integers(-1, 2, items).astype(np.float32)) / 9
    seen = [sorted(rng.choice(items, 5, replace=False).tolist()) for _ in range(users)]
    free = [[i for i in range(items) if i not in s] for s in seen]
    targets = [sorted(rng.choice(f, 1 + n % 3, replace=False).tolist()) for n, f in enumerate(free)]
    ints = pa.list_(pa.int32())
    table = pa.table(
        {
            "user": pa.array(range(users), pa.int64()),
            "user_id_code": pa.array([[2]] * users, ints),
            "history": pa.array([[]] * users, ints),
            "seen": pa.array(seen, ints),
            "targets": pa.array(targets, ints),
        }
    )
    expected = []
    for user in range(users):
        exact = vectors.double() @ of_users[user].double() + prior.double()
        score = {i: round(float(exact[i]), 7) for i in free[user]}
        best = sorted(free[user], key=lambda i: (-score[i], i))[:k]
        expected.append(len(set(best) & set(targets[user])) / len(targets[user]))
    found = Validation(table, make_model(), prior, k, CPU).recall(_Fixed(of_users, vectors))
    assert found == pytest.approx(np.mean(expected))
    assert 0.1 < found < 0.9


@pytest.mark.parametrize("kind", ["two_tower", "traditional"])
def test_reported_recall_is_that_of_the_served_bundle(
    world: World, tmp_path: Path, kind: Any
) -> None:
    job = _job(world, tmp_path, kind=kind)
    recorder = Recorder()
    summary = train(job, recorder)
    assert summary.recall == recorder.metrics[-1][1][RECALL]
    folder = tmp_path / "bundle"
    write_bundle(folder, kind=kind, weights_dir=job.output_dir, corpus_file=job.corpus_file)
    model = Recommender.load(folder)
    table = select_rows(job).users
    assert table is not None
    indices, _ = model.top_k(model.inputs(table), 5)
    hits = [
        t[0] in row for t, row in zip(table["targets"].to_pylist(), indices.tolist(), strict=True)
    ]
    assert summary.recall == pytest.approx(np.mean(hits))


def test_measuring_changes_no_weight(world: World, tmp_path: Path) -> None:
    often = _job(world, tmp_path / "a", validation={"users": 20, "max_share": 0.5, "every": 1})
    once = _job(world, tmp_path / "b", validation={"users": 20, "max_share": 0.5, "every": 1000})
    recorders = [Recorder(), Recorder()]
    for job, recorder in zip((often, once), recorders, strict=True):
        train(job, recorder)
    counts = [sum("validation_seconds" in m for _, m in r.metrics) for r in recorders]
    assert counts == [len(recorders[0].metrics), 1]
    for name, weight in _weights(often).items():
        assert torch.equal(weight, _weights(once)[name]), name


def _stopping(world: World, output: Path, **changes: Any) -> TrainJob:
    # So high a rate that later epochs are worse.
    return _job(
        world,
        output,
        epochs=8,
        early_stopping={"patience": 2},
        optimizer={"learning_rate": 0.05},
        **changes,
    )


@pytest.mark.parametrize("kind", ["two_tower", "traditional"])
def test_the_best_epoch_is_the_result(world: World, tmp_path: Path, kind: Any) -> None:
    job = _stopping(world, tmp_path / "a", kind=kind, keep_checkpoints=1)
    recorder = Recorder()
    summary = train(job, recorder)
    per_epoch = summary.steps // 8
    curve = {s: m[RECALL] for s, m in recorder.metrics if RECALL in m and s % per_epoch == 0}
    best = max(curve, key=lambda step: (curve[step], -step))
    assert summary.best_step == best
    assert summary.recall == curve[best]
    last = max(curve)
    assert last == min(best + 2 * per_epoch, summary.steps)
    assert best < last, "the world is to get worse after its best epoch"
    shorter = job.model_copy(
        update={
            "training": job.training.model_copy(
                update={
                    "epochs": best // per_epoch,
                    "early_stopping": TrainingSettings().early_stopping,
                }
            ),
            "output_dir": str(tmp_path / "shorter/weights"),
            "checkpoint_dir": str(tmp_path / "shorter/checkpoints"),
        }
    )
    train(shorter, Recorder())
    for name, weight in _weights(shorter).items():
        assert torch.equal(weight, _weights(job)[name]), name


@pytest.mark.parametrize("kind", ["two_tower", "traditional"])
def test_early_stopping_survives_a_stop(world: World, tmp_path: Path, kind: Any) -> None:
    whole = _stopping(world, tmp_path / "a", kind=kind)
    recorder = Recorder()
    expected = train(whole, recorder)
    assert expected.best_step is not None
    halted = _stopping(world, tmp_path / "b", kind=kind, keep_checkpoints=1)
    with pytest.raises(Exception, match="a checkpoint is kept"):
        train(halted, StopsAt(expected.best_step + 3))
    again = train(halted, Recorder())
    assert again.resumed_from == expected.best_step + 3
    assert (again.best_step, again.recall) == (expected.best_step, expected.recall)
    for name, weight in _weights(whole).items():
        assert torch.equal(weight, _weights(halted)[name]), name


def test_users_of_a_file_hold_nothing_out(world: World, tmp_path: Path) -> None:
    job = _job(world, tmp_path).model_copy(update={"validation_file": world.test_file})
    selection = select_rows(job)
    assert selection.size == 0
    assert selection.users is not None
    assert all(selection.users["targets"].to_pylist())
    recorder = Recorder()
    train(job, recorder)
    assert world.test_file in dict(recorder.texts)["training"]
    empty = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(world.test_file).slice(0, 0), empty)
    with pytest.raises(ExamplesError, match="no user to validate on"):
        select_rows(job.model_copy(update={"validation_file": str(empty)}))


def test_time_spent_stays_within_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement of one second is affordable again after fifty seconds, at two percent."""
    now = [0.0]
    monkeypatch.setattr("models.validation.time.perf_counter", lambda: now[0])
    schedule = ValidationSchedule(TrainingSettings(), 1000, 1000, CPU)

    class Slow:
        def recall(self, vectors: Any) -> float:
            now[0] += 1.0
            return 0.5

    measured = []
    for step in range(1, 400):
        now[0] += 1.0
        if schedule.due(step, reporting=True):
            schedule.measure(Slow(), None)  # type: ignore[arg-type]
            measured.append(step)
    assert measured[0] == 1
    assert 6 <= len(measured) <= 9
    assert not schedule.due(400, reporting=False)
    assert schedule.due(1000, reporting=False)


def test_early_stopping_without_validation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs validation\.users"):
        TrainingSettings.model_validate(
            {"validation": {"users": 0}, "early_stopping": {"patience": 1}}
        )


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_two_ranks_choose_the_same_epoch(world: World, tmp_path: Path) -> None:
    one = _stopping(world, tmp_path / "one")
    two = _stopping(world, tmp_path / "two", sharding="row_wise")
    expected = train(one, Recorder())
    found = run(two, tmp_path / "run", ranks=2)
    assert found["world_size"] == 2
    assert found["best_step"] == expected.best_step
    assert found["recall"] == pytest.approx(expected.recall, abs=0.051)
    tables = load_file(Path(two.output_dir) / "tables/item.safetensors")["weight"]
    assert torch.isfinite(tables).all()
