"""Some steps of a training, taken apart: memory by component and time by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.config import EarlyStoppingSettings, TrainJob, ValidationSettings
from models.device import compute_device, use_threads
from models.errors import ModelError
from models.stopping import StopRequest
from models.trainer import training_environment

_WARM_UP = 2  # first steps make memory and state that later ones find
_PREFIX, _SUFFIX = "memory_", "_mib"


@dataclass(frozen=True)
class Profile:
    """What steps cost.

    Attributes:
        memory: Bytes by component, see `models.memory_use.MemoryUse`.
        seconds: Seconds of a mean step by part.
        examples_per_second: Throughput.
        loss: Mean loss.
    """

    memory: Mapping[str, float]
    seconds: Mapping[str, float]
    examples_per_second: float
    loss: float


def profile_training(job: TrainJob, steps: int) -> Profile:
    """Trains steps of a job on one rank in this process; its weights are not written.

    Args:
        job: A job of the product; it writes a trace beside its checkpoints when it asks for one.
        steps: Steps to time; two more come first.

    Raises:
        ModelError: The job is of the traditional baseline, which has no parts.
        ExamplesError: A file of examples cannot be used.
    """
    if job.kind != "two_tower":
        raise ModelError("only jobs of kind two_tower can be profiled")
    from models.distributed_training import DistributedTraining

    device = compute_device()
    use_threads(job.training.threads)
    watcher = _Watcher()
    settings = job.training.model_copy(
        update={
            "log_every": 1,
            "checkpoint_every": 1 << 40,
            "validation": ValidationSettings(users=0),
            "early_stopping": EarlyStoppingSettings(),
        }
    )
    job = job.model_copy(update={"training": settings})
    with training_environment(device):
        training = DistributedTraining(job, watcher, device)
        training.fit(StopRequest(), steps=_WARM_UP)
        training.clock.clear()
        watcher.steps = 0
        summary = training.fit(StopRequest(), steps=steps)
        parts = dict(training.clock.seconds)
    taken = max(watcher.steps, 1)
    seconds = {name: value / taken for name, value in parts.items()}
    seconds["waiting for input"] = summary.input_wait_share * summary.seconds / taken
    seconds["everything else"] = max(0.0, summary.seconds / taken - sum(seconds.values()))
    return Profile(watcher.memory, seconds, summary.examples_per_second, summary.loss)


class _Watcher:
    def __init__(self) -> None:
        self.memory: dict[str, float] = {}
        self.steps = 0

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keeps the bytes; every step reports."""
        self.steps += 1
        self.memory |= {
            name.removeprefix(_PREFIX).removesuffix(_SUFFIX): value * 2**20
            for name, value in metrics.items()
            if name.startswith(_PREFIX)
        }

    def log_text(self, name: str, text: str) -> None:
        """Drops the text."""

    def progress(self, done: int, total: int, message: str) -> None:
        """Drops the line."""
