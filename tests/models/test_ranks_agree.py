"""Protects quality at any number of ranks: the same global batches and the same seed give the same
weights at 1, 2 and 4 ranks, however tables are spread, and whatever share of the rows a rank gets.

Micro-batches of seven rows give four ranks uneven shares (1, 2, 2, 2), and the last micro-batch of
each epoch has one row: all ranks but one have nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from models import collectives
from models.config import TrainJob
from models.corpus import Corpus
from models.errors import ModelError
from models.negative_pool import NegativePool
from models.negatives import AliasSampler
from models.progress import TrainSummary
from models.reader import ExampleReader
from models.trainer import train
from tests.models.ranks import on_ranks
from tests.models.sinks import Recorder
from tests.models.worlds import World, make_job, make_model, make_world

pytestmark = pytest.mark.integration
CPU = torch.device("cpu")
CLOSE = 1e-4
MICRO, ACCUMULATE, EPOCHS, STEPS = 7, 2, 5, 50
SHARDINGS = ("data_parallel", "row_wise", "table_wise", "column_wise")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Ten macro-batches an epoch, the last of which is one row."""
    made = make_world(
        tmp_path_factory.mktemp("agree"), num_users=30, num_items=25, events_per_user=8
    )
    _keep(made, MICRO * ACCUMULATE * (STEPS // EPOCHS - 1) + 1)
    return made


def _keep(world: World, rows: int) -> None:
    """Leaves so many rows in the training files, the rest is cut off the last ones."""
    for file in world.train_files:
        table = pq.read_table(file)
        pq.write_table(table.slice(0, rows), file)
        rows -= min(rows, table.num_rows)
    assert rows == 0


def _job(world: World, folder: Path, sharding: str = "auto", **training: Any) -> TrainJob:
    settings = {
        "batch_size": MICRO,
        "accumulate": ACCUMULATE,
        "epochs": EPOCHS,
        "loss": {"num_negatives": 9, "negatives": "tfidf"},
        # Adagrad's first step divides a gradient by itself: with a smaller one, a gradient that is
        # all rounding would be compared.
        "optimizer": {"eps": 1e-4},
        **training,
    }
    return make_job(world, folder, sharding=sharding, model=make_model(), **settings)


def train_here(*jobs: TrainJob) -> list[TrainSummary]:
    return [train(job, Recorder()) for job in jobs]


def _on(ranks: int, *jobs: TrainJob) -> list[list[TrainSummary]]:
    """Summaries of each rank; ranks are started once for all jobs."""
    if ranks == 1:
        return [train_here(*jobs)]
    return on_ranks(ranks, train_here, *jobs)


def _weights(job: TrainJob) -> dict[str, torch.Tensor]:
    folder = Path(job.output_dir)
    tensors = load_file(folder / "towers.safetensors")
    for path in sorted((folder / "tables").iterdir()):
        tensors[path.stem] = load_file(path)["weight"]
    return tensors


def _difference(first: TrainJob, second: TrainJob) -> float:
    a, b = _weights(first), _weights(second)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.fixture(scope="module")
def trained(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], dict[str, TrainJob]]:
    """Finished trainings on some number of ranks, by sharding; made once."""

    @cache
    def on(ranks: int) -> dict[str, TrainJob]:
        folder = tmp_path_factory.mktemp(f"on-{ranks}")
        jobs = {s: _job(world, folder / s, s) for s in SHARDINGS}
        for of_rank in _on(ranks, *jobs.values()):
            assert {s.world_size for s in of_rank} == {ranks}
            assert {s.steps for s in of_rank} == {STEPS}
        return jobs

    return on


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_weights_after_50_macro_batches_are_those_of_one_rank(
    trained: Callable[[int], dict[str, TrainJob]], sharding: str, ranks: int
) -> None:
    assert _difference(trained(ranks)[sharding], trained(1)[sharding]) <= CLOSE


@pytest.mark.parametrize("sharding", ["row_wise", "data_parallel"])
def test_one_rank_keeps_tables_as_many_do(
    trained: Callable[[int], dict[str, TrainJob]], sharding: str
) -> None:
    """What is compared with does not depend on the sharding either."""
    assert _difference(trained(1)[sharding], trained(1)["table_wise"]) <= CLOSE


def test_the_comparison_can_fail(
    world: World, trained: Callable[[int], dict[str, TrainJob]], tmp_path: Path
) -> None:
    """Another seed, and an epoch less than all, are told apart."""
    other = _job(world, tmp_path / "seed", "table_wise", seed=43)
    shorter = _job(world, tmp_path / "short", "table_wise", epochs=EPOCHS - 1)
    _on(1, other, shorter)
    for job in (other, shorter):
        assert _difference(job, trained(1)["table_wise"]) > 10 * CLOSE


LOSSES = {
    "pool of the macro-batch": {"num_negatives": 9, "negatives": "tfidf", "pool": "macro_batch"},
    "bank": {"num_negatives": 0, "negatives": None, "bank": 40},
    "pairwise": {"num_negatives": 5, "negatives": "uniform", "kind": "bce", "logq": "off"},
}


def test_every_pool_of_negatives_is_that_of_one_rank(world: World, tmp_path: Path) -> None:
    one, four = (
        {
            name: _job(world, tmp_path / on / name, "row_wise", loss=loss, epochs=2)
            for name, loss in LOSSES.items()
        }
        for on in ("1", "4")
    )
    _on(1, *one.values())
    _on(4, *four.values())
    for name, job in one.items():
        assert _difference(job, four[name]) <= CLOSE, name


@pytest.mark.parametrize("rows", [(0, 1, 60), (3, 0, 0)], ids=["uneven files", "three rows"])
def test_empty_and_uneven_files_end_together(tmp_path: Path, rows: tuple[int, ...]) -> None:
    """All ranks take the same steps and see each row once, with more ranks than rows, too."""
    made = make_world(tmp_path / "world", num_users=20, num_items=15, events_per_user=8, shards=3)
    table = pq.read_table(made.train_files[0])
    table = pa.concat_tables([table, table])
    for file, count in zip(made.train_files, rows, strict=True):
        pq.write_table(table.slice(0, count), file)
    jobs = [_job(made, tmp_path / name, "table_wise", epochs=2) for name in "ab"]
    summaries = [s for of_rank in _on(1, jobs[0]) + _on(4, jobs[1]) for s in of_rank]
    steps = 2 * -(-sum(rows) // (MICRO * ACCUMULATE))
    assert [s.steps for s in summaries] == [steps] * 5
    assert [s.examples for s in summaries] == [2 * sum(rows)] * 5
    assert _difference(*jobs) <= CLOSE


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("pool", ["micro_batch", "macro_batch"])
def test_ranks_draw_the_same_negatives(world: World, tmp_path: Path, pool: str, ranks: int) -> None:
    """Item by item: the pool's size and content are numbers of the config, not of the ranks."""
    loss = {"num_negatives": 9, "negatives": "tfidf", "pool": pool}
    job = _job(world, tmp_path, loss=loss, epochs=1)
    corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
    sampler = AliasSampler.from_parquet(str(job.negatives_file), len(corpus))

    def pools(rank: int, size: int) -> list[Any]:
        made = NegativePool(job.training.loss, corpus, sampler, 16, job.training.seed, CPU)
        reader = ExampleReader(job, len(corpus), rank, size)
        return [one for macro in reader.read() for one in made.pools(macro)]

    expected = pools(0, 1)
    found = [pools(rank, ranks) for rank in range(ranks)]
    full = MICRO if pool == "micro_batch" else MICRO * ACCUMULATE
    draws = 9 if pool == "micro_batch" else 9 * ACCUMULATE
    assert len(expected[0].item) == full + draws
    for number, one in enumerate(expected):
        owned: list[int] = []
        for mine in (of_rank[number] for of_rank in found):
            assert torch.equal(mine.item, one.item)
            assert torch.equal(mine.log_weight, one.log_weight)
            assert torch.equal(mine.candidates.item, one.candidates.item)
            assert torch.equal(mine.candidates.log_weight, one.candidates.log_weight)
            owned += mine.own.tolist()
        assert sorted(owned) == one.own.tolist(), "each example is one rank's"


def there_and_back(sizes: list[list[int]]) -> list[tuple[list[float], list[float]]]:
    """What a rank gets of each group, and what comes back for its own rows."""
    rank = collectives.rank()
    mine = []
    for group, of in enumerate(sizes):
        first = 100 * group + sum(of[:rank])
        mine.append(torch.arange(first, first + of[rank]).float()[:, None])
    gathered = collectives.gather_shares(mine, sizes)
    # Each rank weighs everything by its own number: d/dx of sum over ranks of (r + 1) x² .
    returned = collectives.sum_shares([2 * (rank + 1) * group for group in gathered], sizes)
    return [
        (g.flatten().tolist(), r.flatten().tolist())
        for g, r in zip(gathered, returned, strict=True)
    ]


@pytest.mark.parametrize(
    "sizes", [[[1, 2, 2, 2]], [[0, 3, 0, 1], [2, 0, 1, 0], [0, 0, 0, 0]], [[0, 0, 0, 0]]]
)
def test_vectors_reach_all_ranks_and_the_sum_of_their_gradients_comes_back(
    sizes: list[list[int]],
) -> None:
    found = on_ranks(4, there_and_back, sizes)
    for group, of in enumerate(sizes):
        everything = [100.0 * group + x for x in range(sum(of))]
        assert [of_rank[group][0] for of_rank in found] == [everything] * 4
        gradients = [value for of_rank in found for value in of_rank[group][1]]
        assert gradients == [(1 + 2 + 3 + 4) * 2 * x for x in everything]


def train_with_another_list(job: TrainJob, change: str) -> str:
    """What the ranks say of a job that the last one has read differently."""
    if collectives.rank() == collectives.world_size() - 1:
        if change == "feature":
            user = job.model.user.model_copy(update={"features": job.model.user.features[::-1]})
            job = job.model_copy(update={"model": job.model.model_copy(update={"user": user})})
        else:
            rows = {**job.table_rows, "item": job.table_rows["item"] + 1}
            job = job.model_copy(update={"table_rows": rows})
    try:
        train_here(job)
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("change", "named"), [("feature", "features of the user tower"), ("rows", "table 'item'")]
)
def test_ranks_that_have_read_different_jobs_say_so(
    world: World, tmp_path: Path, change: str, named: str
) -> None:
    """They would otherwise wait for each other, or train different models."""
    said = on_ranks(3, train_with_another_list, _job(world, tmp_path), change)
    assert len(set(said)) == 1
    assert "rank 2" in said[0]
    assert named in said[0]
