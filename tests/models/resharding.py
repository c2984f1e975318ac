"""Trainings that write a checkpoint on some ranks and load it on others, for `test_resharding`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from models.checkpoint import Checkpoints
from models.config import TrainJob
from models.distributed_training import DistributedTraining
from models.stopping import StopRequest
from models.trainer import training_environment
from tests.models.sinks import Recorder
from tests.models.worlds import World, make_job

CPU = torch.device("cpu")
SAVED_AT = 3
GARBAGE = -7.0


@dataclass(frozen=True)
class Piece:
    """What a rank holds of a table in one piece."""

    table: str
    first_row: int
    first_column: int
    weight: Tensor
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Held:
    """Everything that a rank holds and a checkpoint keeps."""

    pieces: list[Piece]
    towers: dict[str, Tensor]
    dense_state: dict[str, Tensor] = field(default_factory=dict)


def job_of(world: World, folder: Path, sharding: str, seed: int = 42) -> TrainJob:
    return make_job(
        world,
        folder,
        sharding=sharding,
        batch_size=16,
        accumulate=2,
        checkpoint_every=SAVED_AT,
        seed=seed,
        loss={"num_negatives": 8, "negatives": "tfidf"},
    )


def write(jobs: Mapping[str, TrainJob]) -> dict[str, Held]:
    """Trains each job for some steps, leaves its checkpoint, and returns what it holds."""
    held = {}
    with training_environment(CPU):
        for name, job in jobs.items():
            training = DistributedTraining(job, Recorder(), CPU)
            training.fit(StopRequest(), steps=SAVED_AT)
            held[name] = _held(training)
    return held


def load(
    jobs: Mapping[str, tuple[TrainJob, Path]], written: Sequence[int]
) -> dict[tuple[str, int], Held]:
    """Loads, into one training of each job, what every number of ranks has left.

    Args:
        jobs: Jobs of this world, and the folder with the checkpoints that each loads.
        written: Numbers of ranks that left one.
    """
    held = {}
    with training_environment(CPU):
        for name, (job, root) in jobs.items():
            training = DistributedTraining(job, Recorder(), CPU)
            for ranks in written:
                _spoil(training)
                folder = root / str(ranks) / "checkpoints"
                training._checkpoints = Checkpoints(str(folder), job.digest, keep=2)
                assert training.resume() == SAVED_AT
                held[name, ranks] = _held(training)
    return held


@torch.no_grad()
def _spoil(training: DistributedTraining) -> None:
    """Leaves nothing that could be taken for something that was loaded."""
    training._optimization.materialise()
    for part in training._tables.parts():
        for tensor in (part.weight, *part.state.values()):
            tensor.fill_(GARBAGE)
    for tensor in (
        *training._towers.state_dict().values(),
        *training._optimization.state_by_parameter().values(),
    ):
        tensor.fill_(GARBAGE)


def _held(training: DistributedTraining) -> Held:
    return Held(
        pieces=[
            Piece(
                part.table,
                part.first_row,
                part.first_column,
                part.weight.clone(),
                {name: value.clone() for name, value in part.state.items()},
            )
            for part in training._tables.parts()
        ],
        towers={k: v.clone() for k, v in training._towers.state_dict().items()},
        dense_state={k: v.clone() for k, v in training._optimization.state_by_parameter().items()},
    )


def whole(held: Sequence[Held], job: TrainJob) -> dict[str, Tensor]:
    """What all ranks hold as whole tensors, element by element.

    A number that counts for a row of a piece stands in each of its elements, so that two ways of
    cutting a table can be compared. Copies on several ranks must be the same.
    """
    found = {f"towers/{k}": v for k, v in held[0].towers.items()}
    found |= {f"towers' optimizer/{k}": v for k, v in held[0].dense_state.items()}
    for other in held[1:]:
        assert all(torch.equal(v, held[0].towers[k]) for k, v in other.towers.items())
    for of_rank in held:
        for piece in of_rank.pieces:
            height, width = piece.weight.shape
            window = (
                slice(piece.first_row, piece.first_row + height),
                slice(piece.first_column, piece.first_column + width),
            )
            shape = (job.table_rows[piece.table], job.tables[piece.table].dim)
            values = {"weight": piece.weight, **piece.state}
            for name, value in values.items():
                place = found.setdefault(
                    f"{piece.table}/{name}", torch.full(shape, torch.nan, dtype=value.dtype)
                )
                spread = value.view(height, -1).expand(height, width)
                before = place[window]
                assert torch.equal(before.isnan(), torch.ones_like(before, dtype=torch.bool)) or (
                    torch.equal(before, spread)
                ), "two ranks hold different copies"
                place[window] = spread
    return found
