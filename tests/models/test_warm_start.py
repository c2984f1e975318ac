"""Protects continuing from an earlier model: rows and optimizer state arrive where they belong,
features come and go without changing what the model computes, and the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from models import row_moves
from models.bundle import write_bundle
from models.config import ModelSettings, TrainJob, WarmStart
from models.device import compute_device
from models.distributed_training import DistributedTraining
from models.errors import BundleError, WarmStartError
from models.optimizer_state import STATE_FOLDER
from models.row_moves import RowMoves
from models.storage import parquet_rows
from models.trainer import train, training_environment
from tests.models.sinks import Recorder
from tests.models.workers import run
from tests.models.worlds import World, make_job, make_model, make_world

Line = tuple[int, int, float, float]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("warm")
    return make_world(folder, num_users=40, num_items=30, events_per_user=8, shards=1)


def _write_moves(path: Path, lines: list[Line]) -> str:
    names = {"new_row": np.int32, "old_row": np.int32, "weight": np.float32, "state": np.float32}
    columns = np.array(lines, dtype=np.float64).reshape(-1, 4).T
    table = {n: pa.array(c.astype(t)) for (n, t), c in zip(names.items(), columns, strict=True)}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path)
    return str(path)


def _same_rows(rows: int) -> list[Line]:
    return [(row, row, 1.0, 1.0) for row in range(1, rows)]


def _earlier(job: TrainJob, folder: Path, moves: dict[str, list[Line]] | None = None) -> WarmStart:
    """The bundle and the state of a finished job, with moves of its tables."""
    write_bundle(
        folder / "bundle",
        kind="two_tower",
        weights_dir=job.output_dir,
        corpus_file=job.corpus_file,
    )
    lines = {name: _same_rows(rows) for name, rows in job.table_rows.items()} | (moves or {})
    return WarmStart(
        bundle=str(folder / "bundle"),
        state=str(Path(job.output_dir) / STATE_FOLDER),
        moves={n: _write_moves(folder / f"moves/{n}.parquet", m) for n, m in lines.items()},
    )


def _start(job: TrainJob, start: WarmStart) -> DistributedTraining:
    """A training that has taken over the earlier model and has taken no step."""
    device = compute_device()
    with training_environment(device):
        training = DistributedTraining(job, Recorder(), device)
        training.start_from(start)
    return training


def test_rows_are_put_together_by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(row_moves, "_BLOCK", 2)
    old = torch.tensor([[0.0, 0.0], [1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]])
    state = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])
    # Bucket 1 takes a part of row 4 in; 2 stays; 3 is a promoted ID; 5 has moved; 4 and 6 are new.
    lines = [
        (1, 1, 0.75, 0.75), (1, 4, 0.25, 0.25),
        (2, 2, 1.0, 1.0),
        (3, 1, 1.0, 0.5), (3, 2, 1.0, 0.5),
        (5, 3, 1.0, 1.0),
    ]  # fmt: skip
    moves = RowMoves.from_parquet(_write_moves(tmp_path / "m.parquet", lines), 7, 5)
    expected = torch.tensor(
        [[9, 9], [1.75, 17.5], [2, 20], [3, 30], [9, 9], [3, 30], [9, 9]], dtype=torch.float32
    )
    for dtype in (torch.float32, torch.float16):
        fresh = torch.full((7, 2), 9.0, dtype=dtype)
        moves.move_weights(fresh, 0, old)
        torch.testing.assert_close(fresh, expected.to(dtype))
    # A part of the table: rows 2 to 5, and the second column.
    part = torch.full((4, 1), 9.0)
    moves.move_weights(part, 2, old[:, 1:])
    torch.testing.assert_close(part, expected[2:6, 1:])
    accumulator = torch.zeros(7, 1)
    moves.move_state(accumulator, 0, state)
    torch.testing.assert_close(
        accumulator[:, 0], torch.tensor([0.0, 0.175, 0.2, 0.15, 0.0, 0.3, 0.0])
    )


def test_moves_outside_a_table_are_refused(tmp_path: Path) -> None:
    path = _write_moves(tmp_path / "m.parquet", _same_rows(4))
    for sizes in ((3, 4), (4, 3)):
        with pytest.raises(WarmStartError, match="does not fit tables"):
            RowMoves.from_parquet(path, *sizes)
    padding = _write_moves(tmp_path / "p.parquet", [(0, 1, 1.0, 1.0)])
    with pytest.raises(WarmStartError, match="does not fit tables"):
        RowMoves.from_parquet(padding, 4, 4)


OPTIMIZERS = [
    {"sparse": "rowwise_adagrad", "dense": "adagrad"},
    {"sparse": "adagrad", "dense": "adagrad"},
    {"sparse": "adam", "dense": "adam"},
    {"sparse": "sgd", "dense": "sgd"},
]


@pytest.mark.parametrize(
    ("optimizer", "sharding"),
    [*((o, "data_parallel") for o in OPTIMIZERS), *((OPTIMIZERS[n], "auto") for n in (0, 1, 3))],
)
def test_continuing_is_going_on(
    world: World, tmp_path: Path, optimizer: dict[str, str], sharding: str
) -> None:
    """An epoch, and another in a training that continues, is two epochs: state and all."""
    rows = sum(parquet_rows(file) for file in world.train_files)
    settings: dict[str, Any] = {
        # A step an epoch, without drawn negatives: what is trained on is the same.
        "batch_size": rows,
        "accumulate": 1,
        "loss": {"num_negatives": 0, "negatives": None},
        "optimizer": {
            **optimizer, "learning_rate": 0.01, "eps": 1e-3, "accumulator_decay": 0.5
        },
        "sharding": sharding,
    }  # fmt: skip
    whole = make_job(world, tmp_path / "whole", epochs=2, **settings)
    first = make_job(world, tmp_path / "first", **settings)
    for job in (whole, first):
        train(job, Recorder())
    second = make_job(world, tmp_path / "second", **settings)
    start = _earlier(first, tmp_path / "first")
    train(second.model_copy(update={"warm_start": start}), Recorder())
    stateless = make_job(world, tmp_path / "third", **settings)
    forgetful = start.model_copy(update={"state": None})
    train(stateless.model_copy(update={"warm_start": forgetful}), Recorder())
    apart = 0.0
    for name in ("towers", "tables/user", "tables/item", "tables/tag"):
        expected, found, other = (
            load_file(Path(job.output_dir) / f"{name}.safetensors")
            for job in (whole, second, stateless)
        )
        for key, weight in expected.items():
            torch.testing.assert_close(found[key], weight, rtol=1e-4, atol=2e-5)
            apart = max(apart, float((other[key] - weight).abs().max()))
    # The comparison must be able to fail.
    assert optimizer["sparse"] == "sgd" or apart > 1e-3


@pytest.mark.parametrize("sharding", ["auto", "row_wise", "column_wise", "data_parallel"])
def test_rows_and_state_arrive_in_their_tables(world: World, tmp_path: Path, sharding: str) -> None:
    """With a larger item table: rows 1 and 2 stay, 3 mixes two, 4 is nobody's, 40 was 5."""
    first = make_job(world, tmp_path, sharding=sharding)
    if sharding == "column_wise":
        tables = {n: t.model_copy(update={"dim": 64}) for n, t in first.tables.items()}
        first = first.model_copy(update={"tables": tables})
    train(first, Recorder())
    lines = [
        (1, 1, 1.0, 1.0), (2, 2, 1.0, 1.0), (3, 6, 0.5, 0.25), (3, 7, 0.5, 0.75), (40, 5, 1.0, 1.0)
    ]  # fmt: skip
    start = _earlier(first, tmp_path, {"item": lines})
    second = first.model_copy(
        update={"table_rows": {**first.table_rows, "item": 45}, "digest": "d2"}
    )
    training = _start(second, start)
    with training_environment(compute_device()):
        fresh = DistributedTraining(second, Recorder(), compute_device())
    initial = dict(fresh._tables.full_tables())["item"]
    found = dict(training._tables.full_tables())["item"]
    state = dict(training._tables.full_state())["item"]["accumulator"].view(-1)
    old = load_file(tmp_path / "bundle/tables/item.safetensors")["weight"]
    old_state = load_file(Path(start.state or "") / "tables/item.safetensors")["accumulator"]
    assert old_state.shape == (first.table_rows["item"],)
    assert float(old_state.max()) > 0
    expected, expected_state = initial.clone(), torch.zeros(45)
    for row, source in ((1, 1), (2, 2), (40, 5)):
        expected[row], expected_state[row] = old[source], old_state[source]
    expected[3] = 0.5 * old[6] + 0.5 * old[7]
    expected_state[3] = 0.25 * old_state[6] + 0.75 * old_state[7]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(state, expected_state, rtol=1e-6, atol=1e-9)
    assert not torch.equal(initial[2], old[2])


def _without_tags(model: ModelSettings) -> ModelSettings:
    item = model.item.model_copy(update={"features": model.item.features[:1]})
    return model.model_copy(update={"item": item})


def _used(job: TrainJob) -> TrainJob:
    """The job with the tables of its features only."""
    names = {f.table for t in (job.model.user, job.model.item) for f in t.features}
    return job.model_copy(
        update={
            field: {n: v for n, v in getattr(job, field).items() if n in names}
            for field in ("tables", "table_rows", "table_hashes")
        }
    )


def test_a_new_feature_changes_nothing_at_first(world: World, tmp_path: Path) -> None:
    model = make_model()
    first = _used(make_job(world, tmp_path, model=_without_tags(model)))
    train(first, Recorder())
    start = _earlier(first, tmp_path)
    second = make_job(world, tmp_path / "second", model=model)
    training = _start(second, start)
    vectors = training._vectors.item_vectors(torch.arange(world.num_items))
    before = load_file(tmp_path / "bundle/item_vectors.safetensors")["vectors"]
    torch.testing.assert_close(vectors, before, rtol=1e-5, atol=1e-6)
    tags = training._towers.state_dict()["item.mlp.0.weight"][:, 16:]
    assert torch.equal(tags, torch.zeros_like(tags))
    state = training._optimization.state_by_parameter()["item.mlp.0.weight/sum"]
    assert float(state[:, :16].min()) > 0
    assert torch.equal(state[:, 16:], torch.zeros_like(tags))
    train(second.model_copy(update={"warm_start": start}), Recorder())
    learned = load_file(Path(second.output_dir) / "towers.safetensors")["item.mlp.0.weight"]
    assert float(learned[:, 16:].abs().max()) > 0


def test_a_removed_feature_leaves_the_others(world: World, tmp_path: Path) -> None:
    model = make_model()
    first = make_job(world, tmp_path, model=model)
    train(first, Recorder())
    start = _earlier(first, tmp_path)
    second = _used(make_job(world, tmp_path / "second", model=_without_tags(model)))
    start = start.model_copy(
        update={"moves": {n: m for n, m in start.moves.items() if n in second.tables}}
    )
    training = _start(second, start)
    old = load_file(tmp_path / "bundle/towers.safetensors")
    found = training._towers.state_dict()
    assert torch.equal(found["item.mlp.0.weight"], old["item.mlp.0.weight"][:, :16])
    assert torch.equal(found["item.mlp.2.weight"], old["item.mlp.2.weight"])


def test_features_in_another_order_keep_their_columns(world: World, tmp_path: Path) -> None:
    model = make_model()
    first = make_job(world, tmp_path, model=model)
    train(first, Recorder())
    item = model.item.model_copy(update={"features": model.item.features[::-1]})
    second = make_job(world, tmp_path / "second", model=model.model_copy(update={"item": item}))
    training = _start(second, _earlier(first, tmp_path))
    vectors = training._vectors.item_vectors(torch.arange(world.num_items))
    before = load_file(tmp_path / "bundle/item_vectors.safetensors")["vectors"]
    torch.testing.assert_close(vectors, before, rtol=1e-5, atol=1e-6)


def test_a_longer_history_keeps_what_it_knows_of_distances(world: World, tmp_path: Path) -> None:
    first = make_job(world, tmp_path)
    train(first, Recorder())
    user = first.model.user
    longer = [
        f.model_copy(update={"max_length": 10}) if f.kind == "history" else f for f in user.features
    ]
    model = first.model.model_copy(
        update={"user": user.model_copy(update={"features": tuple(longer)})}
    )
    training = _start(make_job(world, tmp_path / "second", model=model), _earlier(first, tmp_path))
    old = load_file(tmp_path / "bundle/towers.safetensors")["user.pools.recent.recency"]
    found = training._towers.state_dict()["user.pools.recent.recency"]
    assert float(old.abs().max()) > 0
    assert torch.equal(found, torch.cat([old, torch.zeros(2)]))


def test_what_changed_its_shape_is_refused_unless_it_starts_anew(
    world: World, tmp_path: Path
) -> None:
    first = make_job(world, tmp_path)
    train(first, Recorder())
    start = _earlier(first, tmp_path)
    wider = {**first.tables, "tag": first.tables["tag"].model_copy(update={"dim": 12})}
    half = {**first.tables, "tag": first.tables["tag"].model_copy(update={"dtype": "fp16"})}
    for tables, reason in ((wider, "dim was 8 and is 12"), (half, "dtype was fp32 and is fp16")):
        with pytest.raises(WarmStartError, match=f"table tag: {reason}"):
            _start(first.model_copy(update={"tables": tables}), start)
    anew = start.model_copy(
        update={
            "moves": {n: m for n, m in start.moves.items() if n != "tag"},
            "fresh_tables": ("tag",),
        }
    )
    training = _start(first.model_copy(update={"tables": wider}), anew)
    old = load_file(tmp_path / "bundle/towers.safetensors")["item.mlp.0.weight"]
    found = training._towers.state_dict()["item.mlp.0.weight"]
    assert torch.equal(found[:, :16], old[:, :16])
    assert found.shape[1] == 28
    assert float(found[:, 16:].abs().min()) > 0
    deeper = first.model_copy(update={"model": first.model.model_copy(update={"dim": 24})})
    with pytest.raises(WarmStartError, match=r"model\.dim was 16 and is 24"):
        _start(deeper, start)
    _start(deeper, start.model_copy(update={"fresh_towers": True}))


def test_state_of_another_optimizer_is_not_taken_over(world: World, tmp_path: Path) -> None:
    first = make_job(world, tmp_path)
    train(first, Recorder())
    start = _earlier(first, tmp_path)
    optimizer = {"sparse": "adagrad", "dense": "adam"}
    training = _start(make_job(world, tmp_path / "second", optimizer=optimizer), start)
    (state,) = dict(training._tables.full_state())["item"].values()
    assert torch.equal(state, torch.zeros_like(state))
    for value in training._optimization.state_by_parameter().values():
        assert torch.equal(value, torch.zeros_like(value))


def test_damaged_files_are_told(world: World, tmp_path: Path) -> None:
    first = make_job(world, tmp_path)
    train(first, Recorder())
    start = _earlier(first, tmp_path)
    state = Path(start.state or "")
    save_file({"accumulator": torch.zeros(3)}, state / "tables/item.safetensors")
    with pytest.raises(BundleError, match=r"tables/item\.safetensors"):
        _start(first, start)
    (state / "state.json").unlink()
    with pytest.raises(WarmStartError, match="cannot be read"):
        _start(first, start)


def test_only_examples_since_a_time_are_trained_on(world: World, tmp_path: Path) -> None:
    job = make_job(world, tmp_path, log_every=1).model_copy(update={"since_us": 5})
    summary = train(job, Recorder())
    times = [
        time
        for file in world.train_files
        for time in pq.read_table(file).column("timestamp").to_pylist()
    ]
    assert 0 < summary.examples == sum(time >= 5 for time in times) < len(times)
    validated = job.model_copy(
        update={
            "training": job.training.model_validate(
                {**job.training.model_dump(), "validation": {"users": 5, "max_share": 0.5}}
            ),
            "output_dir": str(tmp_path / "v"),
            "checkpoint_dir": str(tmp_path / "vc"),
        }
    )
    assert train(validated, Recorder()).examples == summary.examples - 5


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "column_wise"])
def test_two_ranks_start_from_the_same_rows(world: World, tmp_path: Path, sharding: str) -> None:
    """The state of a training on two ranks is continued on two ranks, as on one."""
    first = make_job(world, tmp_path / "first", sharding=sharding)
    run(first, tmp_path / "run-first", ranks=2)
    lines = [(1, 1, 1.0, 1.0), (3, 6, 0.5, 0.5), (3, 7, 0.5, 0.5), (20, 5, 1.0, 1.0)]
    start = _earlier(first, tmp_path / "first", {"item": lines})
    results = []
    for ranks in (1, 2):
        second = make_job(
            world, tmp_path / f"second-{ranks}", sharding=sharding, optimizer={"eps": 1e-4}
        ).model_copy(update={"warm_start": start})
        run(second, tmp_path / f"run-{ranks}", ranks=ranks)
        folder = Path(second.output_dir)
        results.append(
            {
                str(path.relative_to(folder)) + key: value
                for path in sorted(folder.rglob("*.safetensors"))
                for key, value in load_file(path).items()
            }
        )
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-3, atol=1e-4, msg=name)
