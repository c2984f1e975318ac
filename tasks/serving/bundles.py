"""Finding the model bundles of a run on this machine's disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def champion_folder(spec: RunSpec, champion: ModelReference) -> Iterator[Path]:
    """Local folder of a registered version's bundle, for reading inside the block.

    The lake's copy is taken where it still is; otherwise the registry's own.

    Raises:
        TrackingError: The registry is needed and cannot be reached.
    """
    lake = spec.lake()
    published = lake.find(champion.bundle)
    if published is not None:
        yield bundle_folder(lake, published)
        return
    from tasks.serving.packaging import bundle_in
    from tasks.tracking import registry

    with registry.local_copy(spec.config, champion.version) as model:
        yield bundle_in(model)
