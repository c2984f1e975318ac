"""Which launcher a pipeline's settings ask for, and in which shape a job runs."""

from __future__ import annotations

from tasks.config import PipelineConfig
from tasks.lake import Lake
from tasks.launch.dask import DaskLauncher
from tasks.launch.kubernetes import KubernetesLauncher
from tasks.launch.local import LocalLauncher
from tasks.launch.protocol import JobShape, Launcher


def launcher_of(config: PipelineConfig) -> Launcher:
    """The launcher of a pipeline.

    Raises:
        ConfigError: Its settings are incomplete.
    """
    if config.launch.kind == "dask":
        return DaskLauncher(config.dask)
    if config.launch.kind == "kubernetes":
        return KubernetesLauncher(config.launch.kubernetes, Lake(config.lake).local_path(""))
    return LocalLauncher()


def shape_of(config: PipelineConfig) -> JobShape:
    """The shape of the candidate's job."""
    training, launch = config.training, config.launch
    return JobShape(
        ranks_per_node=training.nproc,
        threads=training.threads,
        max_restarts=training.max_restarts,
        min_nodes=launch.min_nodes,
        max_nodes=launch.max_nodes,
        peer_timeout_seconds=launch.peer_timeout_seconds,
        join_seconds=launch.join_seconds,
    )
