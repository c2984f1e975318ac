"""The champion's towers as ONNX, for hosts that run them without this product."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.bundle import Recommender
from models.encoder import TowerInputs
from models.onnx_towers import (
    PROVIDERS,
    OnnxTower,
    Side,
    export_tower,
    padded_inputs,
    padded_tower,
)
from models.serving_settings import Precision
from models.stored_rows import StoredRows
from tasks.config import PipelineConfig
from tasks.errors import ConfigError, LakeError
from tasks.lake import Lake, Output, Published
from tasks.progress import log
from tasks.promotion import require_pointer
from tasks.serving.bundles import bundle_folder

FOLDER = "serving/towers"
TOLERANCE = 1e-5
"""Largest difference of a coordinate from the training forward pass, in fp32."""
_FORMAT = 1
_SAMPLE = 256
_QUANTISED: tuple[Precision, ...] = ("fp16", "int8")


def export_towers(config: PipelineConfig) -> Published:
    """Writes the towers of the model that is served; those that were exported before are found.

    Returns:
        `user_tower.onnx` and `item_tower.onnx` (`models/onnx_towers.py` says what goes in and
        out). The manifest's `meta` has `version`, `day`, `providers` and, by tower, the largest
        difference of a coordinate from the training forward pass with rows in fp32, fp16 and int8.

    Raises:
        ConfigError: Nothing is served yet, or there are no towers in it.
        BundleError: The bundle is damaged, or packages of the extra `onnx` are not installed.
        LakeError: A tower answers otherwise than in training.
    """
    lake = Lake(config.lake)
    pointer = require_pointer(lake)
    trained = lake.open_published(pointer["output"])

    def write(output: Output) -> None:
        model = Recommender.load(bundle_folder(lake, trained))
        folder = lake.local_path(output.path)
        folder.mkdir(parents=True, exist_ok=True)
        differences: dict[str, dict[str, float]] = {}
        for side in ("user", "item"):
            path = folder / f"{side}_tower.onnx"
            differences[side] = _export(model, side, path)
            worst = differences[side]["fp32"]
            if worst > TOLERANCE:
                raise LakeError(
                    f"the exported {side} tower differs from the trained one by {worst:.1e}",
                    where=str(path),
                    fix=f"do not use it; {TOLERANCE:.0e} is allowed",
                )
            log("export_towers", tower=side, bytes=path.stat().st_size, **differences[side])
        output.meta.update(
            version=pointer["version"],
            day=pointer["day"],
            providers=list(PROVIDERS),
            differences=differences,
        )

    return lake.build(
        FOLDER,
        date.fromisoformat(pointer["day"]),
        write,
        inputs={"bundle": pointer["digest"]},
        settings={"version": pointer["version"], "format": _FORMAT},
    )


def _export(model: Recommender, side: Side, path: Path) -> dict[str, float]:
    """Writes one tower; returns its largest difference from training, by precision of the rows."""
    trained = model.bundle.trained
    if trained is None or model.users is None:
        raise ConfigError("the served model has no towers, or no users", where=str(model.folder))
    codes = _sample_codes(model, side)
    tower = padded_tower(trained, model.towers, side)
    inputs = padded_inputs(trained, model.tables, codes, side)
    export_tower(tower, inputs, side, path)
    full = {name: rows[:] for name, rows in model.tables.items()}
    forward = model.towers.user_vectors if side == "user" else model.towers.item_vectors
    wanted: Tensor = forward(full, codes)
    onnx = OnnxTower(path)
    differences = {"fp32": _difference(onnx(inputs), wanted)}
    for precision in _QUANTISED:
        fewer = {name: StoredRows.of(rows, precision) for name, rows in full.items()}
        found = onnx(padded_inputs(trained, fewer, codes, side))
        differences[precision] = _difference(found, wanted)
    return differences


def _sample_codes(model: Recommender, side: Side) -> TowerInputs:
    if side == "item":
        return model.encoder.item_codes(torch.arange(min(_SAMPLE, model.num_items)))
    assert model.users is not None
    return model.encoder.user_codes(model.inputs(model.users.slice(0, _SAMPLE)))


def _difference(found: npt.NDArray[np.float32], wanted: Tensor) -> float:
    return float((torch.from_numpy(found) - wanted).abs().max())
