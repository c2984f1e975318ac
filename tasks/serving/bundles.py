"""Finding the model bundles of a run on this machine's disk."""

from __future__ import annotations

from pathlib import Path

from tasks.config import PipelineConfig
from tasks.lake import Lake, Published
from tasks.run_spec import ModelReference, RunSpec

MODEL = "model"
"""Name of the bundle among the outputs of the step `train`."""


def bundle_folder(lake: Lake, published: Published) -> Path:
    """Local folder of a published bundle.

    Raises:
        LakeError: The lake is not on a local disk, or the output is no bundle.
    """
    return lake.local_path(published.file("bundle.json")).parent


def trained_model(spec: RunSpec, role: str) -> Published:
    """The published bundle of a role of a run.

    Raises:
        UpstreamError: The role has not been trained.
    """
    return spec.output(f"train.{role}", MODEL)


def registered_model(lake: Lake, model: ModelReference) -> Published:
    """The published bundle of a registered version.

    Raises:
        LakeError: It was removed from the lake.
    """
    return lake.open_published(model.bundle)


def table_sources(config: PipelineConfig) -> dict[str, str]:
    """Raw column behind each embedding table."""
    return {name: table.source for name, table in config.tables.items()}
