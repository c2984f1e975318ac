"""Protects what examples are compared with: the pool's draws and the bank's, each item once with
all its draws and its newest vector, and a bank that forgets first what came first."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.alias_table import build_alias_table
from models.batch import Batch, UserInputs
from models.config import LossSettings
from models.corpus import Corpus
from models.errors import TrainingStopped
from models.jagged import Jagged
from models.negative_pool import NegativePool
from models.negatives import AliasSampler
from models.reader import MacroBatch, MicroBatch
from models.trainer import train
from models.vector_bank import VectorBank
from tests.models.sinks import Recorder
from tests.models.test_trainer import StopsAt
from tests.models.worlds import make_job, make_world

CPU = torch.device("cpu")
COUNTS = [50, 20, 10, 10, 5, 3, 1, 1]


def _macro(step: int, items: list[list[int]]) -> MacroBatch:
    micro = []
    for own in items:
        size = len(own)
        users = UserInputs(torch.arange(size), {}, Jagged.from_lists([[] for _ in own]))
        batch = Batch(users, torch.tensor(own), torch.ones(size))
        micro.append(MicroBatch(torch.tensor(own), torch.arange(size), 0, batch))
    return MacroBatch(step, 0, tuple(micro), sum(map(len, items)), 1.0)


def _pool(**settings: Any) -> NegativePool:
    corpus = Corpus(torch.tensor(COUNTS), {}, torch.tensor(COUNTS))
    sampler = AliasSampler(build_alias_table([1.0] * len(COUNTS)))
    return NegativePool(LossSettings.model_validate(settings), corpus, sampler, 2, 7, CPU)


@pytest.mark.parametrize("capacity", [1, 5, 12, 100])
def test_bank_and_pool_become_one_column_for_each_item(capacity: int) -> None:
    pool = _pool(bank=capacity, num_negatives=3, logq_alpha=0.5)
    generator = torch.Generator().manual_seed(2)
    # Item, weight and vector of each remembered draw, oldest first: the brute-force bank.
    remembered: deque[tuple[int, float, list[float]]] = deque(maxlen=capacity)
    for step in range(9):
        own = torch.randint(8, (4,), generator=generator).tolist()
        (one,) = pool.pools(_macro(step, [own]))
        assert one.item[:4].tolist() == own
        share = [math.sqrt(sum(COUNTS) / COUNTS[i]) for i in own]
        weights = share + [math.sqrt(8.0)] * 3
        vectors = torch.randn(len(one.candidates.item), 2, generator=generator)
        found, candidates, positives = pool.compare(one, vectors)

        expected: dict[int, tuple[float, int, list[float]]] = {}
        draws = [(int(i), w, None) for i, w in zip(one.item, weights, strict=True)]
        for item, weight, vector in [*remembered, *draws]:
            before, number, _ = expected.get(item, (0.0, 0, []))
            if vector is None:
                vector = vectors[one.candidates.item.tolist().index(item)].tolist()
            expected[item] = (before + weight, number + 1, vector)
        assert sorted(candidates.item.tolist()) == sorted(expected)
        assert candidates.total == len(remembered) + 7
        for column, item in enumerate(candidates.item.tolist()):
            weight, number, vector = expected[item]
            assert math.exp(candidates.log_weight[column]) == pytest.approx(weight, rel=1e-5)
            assert int(candidates.draws[column]) == number
            assert found[column].tolist() == vector
        assert candidates.item[positives.column].tolist() == own
        assert torch.equal(found[: len(vectors)], vectors)
        pool.remember(one, vectors)
        for item, weight in zip(one.item.tolist(), weights, strict=True):
            place = one.candidates.item.tolist().index(item)
            remembered.append((item, weight, vectors[place].tolist()))


def test_only_the_pools_own_items_learn() -> None:
    pool = _pool(bank=20, num_negatives=2)
    for step in range(3):
        (one,) = pool.pools(_macro(step, [[step, step + 1]]))
        vectors = torch.randn(len(one.candidates.item), 2).requires_grad_()
        found, _, _ = pool.compare(one, vectors)
        (gradient,) = torch.autograd.grad(found.sum(), vectors)
        assert torch.equal(gradient, torch.ones_like(vectors))
        pool.remember(one, vectors)


def test_macro_batch_is_one_pool_with_the_draws_of_its_micro_batches() -> None:
    macro = _macro(4, [[0, 1, 2], [3, 0]])
    apart = _pool(num_negatives=3, pool="micro_batch").pools(macro)
    (together,) = _pool(num_negatives=3, pool="macro_batch").pools(macro)
    assert together.item[:5].tolist() == [0, 1, 2, 3, 0]
    assert together.item[5:].tolist() == [int(i) for p in apart for i in p.item[-3:]]
    assert together.own.tolist() == [0, 1, 2, 3, 4]


def test_bank_forgets_first_what_came_first() -> None:
    bank = VectorBank(4, 1, CPU)
    seen: list[int] = []
    for size in (2, 3, 0, 1, 9, 4):
        items = torch.arange(len(seen), len(seen) + size)
        seen += items.tolist()
        bank.push(items, items * 0.5, items[:, None] * 2.0)
        item, log_weight, vector = bank.draws()
        assert item.tolist() == seen[-4:]
        assert log_weight.tolist() == [i * 0.5 for i in seen[-4:]]
        assert vector.flatten().tolist() == [i * 2.0 for i in seen[-4:]]


def test_training_with_a_bank_resumes_bitwise(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", num_users=40, num_items=30)
    loss = {"bank": 200, "num_negatives": 8}
    jobs = [
        make_job(world, tmp_path / name, batch_size=32, accumulate=2, log_every=1, loss=loss)
        for name in "ab"
    ]
    train(jobs[0], Recorder())
    with pytest.raises(TrainingStopped):
        train(jobs[1], StopsAt(4))
    train(jobs[1], Recorder())
    first, second = (
        load_file(Path(job.output_dir) / "tables/item.safetensors")["weight"] for job in jobs
    )
    assert torch.equal(first, second)
