"""Protects checkpoints against another number of ranks: what N ranks wrote, M ranks load, for every
N and M up to four and every way to spread a table. Weights and optimizer state are equal to the
last bit.

Ranks come in nodes of two where four are there, so that `table_row_wise` has nodes to choose from.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.ranks import on_ranks
from tests.models.resharding import GARBAGE, Held, job_of, load, whole, write
from tests.models.worlds import World, make_world
from tests.reliability import RANKS, SHARDINGS, Resharding

# Worlds of all sizes are started before the first cell is looked at.
pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(400)]
SEED_OF_LOADERS = 7
CHANGES = {
    "table_wise to row_wise": ("table_wise", "row_wise"),
    "row_wise to table_wise": ("row_wise", "table_wise"),
}
"""What `auto` may do when the number of ranks changes."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(
        tmp_path_factory.mktemp("resharding"), num_users=40, num_items=30, events_per_user=8
    )


def _nodes(ranks: int) -> int | None:
    return 2 if ranks == 4 else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def held(world: World, folder: Path) -> dict[tuple[str, int], list[Held]]:
    """What each rank of each number of ranks held when it left a checkpoint, by sharding."""
    found = {}
    for ranks in RANKS:
        jobs = {s: job_of(world, folder / s / str(ranks), s) for s in SHARDINGS}
        every: list[dict[str, Held]] = on_ranks(ranks, write, jobs, ranks_a_node=_nodes(ranks))
        for s in SHARDINGS:
            found[s, ranks] = [of_rank[s] for of_rank in every]
    return found


@pytest.fixture(scope="module")
def written(
    world: World, folder: Path, held: dict[tuple[str, int], list[Held]]
) -> dict[tuple[str, int], dict[str, Tensor]]:
    """The same as whole tensors."""
    job = job_of(world, folder, "auto")
    return {key: whole(of_ranks, job) for key, of_ranks in held.items()}


@pytest.fixture(scope="module")
def loaded(
    world: World, folder: Path, written: dict[tuple[str, int], dict[str, Tensor]]
) -> dict[tuple[str, int, int], dict[str, Tensor]]:
    """What each number of ranks holds after it loaded what each number wrote, by sharding."""
    found = {}
    for ranks in RANKS:
        # Of another seed: rows that no step has touched are the writer's only if they were loaded.
        ways = {**{s: (s, s) for s in SHARDINGS}, **CHANGES}
        jobs = {
            name: (job_of(world, folder / "loads", now, SEED_OF_LOADERS), folder / before)
            for name, (before, now) in ways.items()
        }
        held: list[dict[tuple[str, int], Held]] = on_ranks(
            ranks, load, jobs, RANKS, ranks_a_node=_nodes(ranks)
        )
        for name, (job, _) in jobs.items():
            for before in RANKS:
                key = (name, before)
                found[name, before, ranks] = whole([of_rank[key] for of_rank in held], job)
    return found


@pytest.mark.parametrize("after", RANKS)
@pytest.mark.parametrize("before", RANKS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_checkpoint_loads(
    written: dict[tuple[str, int], dict[str, Tensor]],
    loaded: dict[tuple[str, int, int], dict[str, Tensor]],
    sharding: str,
    before: int,
    after: int,
) -> None:
    """Sharding, number of ranks that wrote, number of ranks that load."""
    difference = _compared(written[sharding, before], loaded[sharding, before, after])
    Resharding(sharding, before, after, difference).record()


@pytest.mark.parametrize("after", RANKS)
@pytest.mark.parametrize("before", RANKS)
@pytest.mark.parametrize("change", CHANGES)
def test_checkpoint_loads_where_the_planner_decides_otherwise(
    written: dict[tuple[str, int], dict[str, Tensor]],
    loaded: dict[tuple[str, int, int], dict[str, Tensor]],
    change: str,
    before: int,
    after: int,
) -> None:
    _compared(written[CHANGES[change][0], before], loaded[change, before, after])


def _compared(expected: dict[str, Tensor], found: dict[str, Tensor]) -> float:
    """Largest difference, which must be none."""
    assert found.keys() == expected.keys()
    assert {f"{table}/accumulator" for table in ("user", "item", "tag")} < found.keys()
    difference = 0.0
    for name, value in expected.items():
        assert not value.isnan().any(), f"{name}: no rank had all of it"
        assert not (value == GARBAGE).any()
        difference = max(difference, float((found[name] - value).abs().max()))
        assert torch.equal(found[name], value), name
    return difference


def test_training_had_moved_what_is_compared(
    written: dict[tuple[str, int], dict[str, Tensor]],
) -> None:
    for (sharding, ranks), held in written.items():
        for table in ("user", "item", "tag"):
            assert float(held[f"{table}/accumulator"].max()) > 0, (sharding, ranks)
    first, other = written["row_wise", 1], written["row_wise", 4]
    assert float((first["item/weight"] - other["item/weight"]).abs().max()) < 1e-4


def test_tables_are_really_spread(world: World, held: dict[tuple[str, int], list[Held]]) -> None:
    """The matrix would say nothing about tables that lie on one rank."""

    def shapes(sharding: str) -> list[tuple[int, ...]]:
        """Rows and columns of what four ranks have of the user table."""
        return [
            tuple(piece.weight.shape)
            for of_rank in held[sharding, 4]
            for piece in of_rank.pieces
            if piece.table == "user" and piece.weight.numel()
        ]

    rows = world.table_rows["user"]
    assert shapes("data_parallel") == [(rows, 16)] * 4
    assert shapes("table_wise") == [(rows, 16)]
    assert shapes("row_wise") == [(11, 16), (11, 16), (11, 16), (rows - 33, 16)]
    assert shapes("column_wise") == [(rows, 4)] * 4
    assert shapes("table_row_wise") == [(rows // 2, 16)] * 2
