"""Trains a model from a job: the loop around the steps.

Every rank runs `train` with the same job. Stopping (SIGTERM) and failing are safe at any time:
the same job started again continues from its last checkpoint, sees each example of each epoch
exactly once, and ends with the weights that an undisturbed run would have.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from models import collectives
from models.agreement import require_one_job
from models.config import TrainJob
from models.device import communication_backend, compute_device, keep_freed_memory, use_threads
from models.errors import ModelError
from models.progress import MetricSink, TrainSummary
from models.stopping import StopRequest
from models.weights import read_weights_file


def train(job: TrainJob, sink: MetricSink) -> TrainSummary:
    """Trains a job to its end and writes the weights to `job.output_dir`.

    Joins the process group that torch elastic describes in the environment, or makes one of a
    single rank. A job whose weights are there already returns at once.

    Args:
        job: The job; the same on every rank.
        sink: Where the first rank reports to.

    Raises:
        ModelError: Ranks have read different jobs, or need more memory than they have.
        ExamplesError: A file of examples cannot be used.
        CheckpointError: A checkpoint belongs to another job, or cannot be loaded or written.
        TrainingStopped: The process was told to stop; a checkpoint was written first.
    """
    device = compute_device()
    use_threads(job.training.threads)
    with training_environment(device, timedelta(seconds=job.peer_timeout_seconds)):
        require_one_job(job)
        if collectives.first_decides(lambda: _finished(job)):
            return _summary_of_finished(job)
        with StopRequest() as stop:
            # TorchRec takes seconds to import; the baseline does without it.
            if job.kind == "traditional":
                from models.traditional import train_traditional

                return train_traditional(job, sink, device, stop)
            from models.distributed_training import DistributedTraining

            return DistributedTraining(job, sink, device).run(stop)


@contextmanager
def training_environment(
    device: torch.device, peer_timeout: timedelta | None = None
) -> Iterator[None]:
    """Where a training may be made: a process group, and libraries that keep to themselves.

    Args:
        device: This rank's device.
        peer_timeout: How long a rank waits for another before it gives up; by default as long as
            PyTorch does.
    """
    keep_freed_memory()
    with _quiet_libraries(), _process_group(device, peer_timeout):
        yield


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Keeps what TorchRec and DCP say about their own future out of the log of a training."""
    for name in ("torchrec", "torch.fx._symbolic_trace"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # TorchRec 1.8 keeps its tables as ShardedTensor, and DCP reads them through methods that
        # torch 2.13 has deprecated.
        warnings.filterwarnings("ignore", "Please use DTensor", FutureWarning)
        yield


@contextmanager
def _process_group(device: torch.device, timeout: timedelta | None) -> Iterator[None]:
    """Joins the ranks that torch elastic started, or makes a world of one."""
    if dist.is_initialized():
        yield
        return
    backend = communication_backend(device)
    if dist.is_torchelastic_launched():
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _finished(job: TrainJob) -> bool:
    weights = read_weights_file(Path(job.output_dir))
    if weights is None:
        return False
    if weights.trained.digest != job.digest:
        raise ModelError(
            f"{job.output_dir} holds the weights of another job (digest "
            f"{weights.trained.digest}, this job's is {job.digest}): give this job a new folder"
        )
    return True


def _summary_of_finished(job: TrainJob) -> TrainSummary:
    nan = float("nan")
    return TrainSummary(
        steps=0,
        examples=0,
        seconds=0.0,
        loss=nan,
        examples_per_second=0.0,
        input_wait_share=0.0,
        peak_memory_bytes=0,
        world_size=collectives.world_size(),
        resumed_from=None,
        output_dir=job.output_dir,
    )
