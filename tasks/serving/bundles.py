"""Finding the model bundles of a run on this machine's disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def served_path(run_id: str) -> str:
    """Lake path of what servers open of a run's candidate."""
    return f"serving/models/{run_id}"


def find_served(lake: Lake, run_id: str, trained: Published) -> Published | None:
    """The published bundle of a run's candidate, if it was made from that very model."""
    found = lake.find(served_path(run_id))
    if found is None or found.manifest.inputs.get("bundle") != trained.digest:
        return None
    return found


def served_bundle(lake: Lake, pointer: dict[str, Any]) -> Published:
    """What servers open of the champion: the published bundle, else the trained one.

    Raises:
        LakeError: It is missing.
    """
    return lake.open_published(pointer.get("served") or pointer["output"])


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
