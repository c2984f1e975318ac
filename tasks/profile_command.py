"""`tailtower profile`: where the memory and the time of a training's steps go."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.table import Table

from tasks.errors import ConfigError
from tasks.progress import console

if TYPE_CHECKING:
    from models.config import TrainJob


def profile_command(
    job: Annotated[
        Path,
        typer.Argument(
            help="job.json of a training; the train step leaves it in "
            "checkpoints/<run>/<role>/ of the lake."
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Steps to time.")] = 10,
    trace: Annotated[
        int, typer.Option(min=0, max=100, help="Steps to record with torch.profiler.")
    ] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the trace.")] = Path(),
) -> None:
    """Train some steps of a job in this process and show where memory and time go.

    Nothing of the job is changed: its weights and checkpoints are left alone.
    """
    from models.profiling import profile_training

    with tempfile.TemporaryDirectory() as scratch:
        changed = _in_scratch(_read(job), Path(scratch), trace)
        found = profile_training(changed, steps)
        console.print(_table("memory of one rank", found.memory, "MiB", 2**20))
        console.print(_table("a step, mean", found.seconds, "ms", 1e-3))
        console.print(
            f"{found.examples_per_second:,.0f} examples/s, loss {found.loss:.4f}", highlight=False
        )
        for path in sorted(Path(scratch).glob("traces/*")):
            target = output / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            console.print(f"trace: {target} (open it in ui.perfetto.dev)", highlight=False)


def _read(path: Path) -> TrainJob:
    from models.config import TrainJob

    try:
        return TrainJob.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the job cannot be read: {error.strerror}",
            where=str(path),
            fix="give the job.json that a train step left in its checkpoints folder",
        ) from error
    except ValidationError as error:
        raise ConfigError(
            f"this is no training job: {error.errors()[0]['msg']}",
            where=str(path),
            fix="run the train step again: it writes the job of this version",
        ) from error


def _in_scratch(job: TrainJob, scratch: Path, trace: int) -> TrainJob:
    training = job.training.model_copy(update={"trace_steps": trace, "nproc": 1})
    return job.model_copy(
        update={
            "training": training,
            "checkpoint_dir": str(scratch / "checkpoints"),
            "output_dir": str(scratch / "weights"),
        }
    )


def _table(title: str, values: Mapping[str, float], unit: str, size: float) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column()
    table.add_column(justify="right")
    for name, value in sorted(values.items(), key=lambda entry: -entry[1]):
        table.add_row(name, f"{value / size:,.1f} {unit}")
    return table
