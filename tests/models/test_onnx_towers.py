"""Protects the exported towers: ONNX Runtime computes what the training forward pass does, for
other batch sizes and lengths than the exported ones, empty histories included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.bundle import Recommender
from models.errors import BundleError
from models.onnx_towers import (
    PROVIDERS,
    OnnxTower,
    Side,
    export_tower,
    padded_inputs,
    padded_tower,
)
from tests.models.served_worlds import make_trained


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Recommender:
    return Recommender.load(
        make_trained(tmp_path_factory.mktemp("onnx"), users=40, items=60, seed=3)
    )


def _needed() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["user", "item"])
def test_onnx_equals_the_training_forward_pass(
    model: Recommender, side: Side, tmp_path: Path
) -> None:
    _needed()
    trained = model.bundle.trained
    assert trained is not None
    assert model.users is not None
    rows = {name: table[:] for name, table in model.tables.items()}
    users = model.inputs(model.users)
    if side == "user":
        parts = [model.encoder.user_codes(users.slice(a, b)) for a, b in ((0, 8), (8, 40), (0, 1))]
        wanted = [model.towers.user_vectors(rows, part) for part in parts]
    else:
        parts = [model.encoder.item_codes(torch.arange(n)) for n in (8, 60, 1)]
        wanted = [model.towers.item_vectors(rows, part) for part in parts]
    path = tmp_path / "tower.onnx"
    example = padded_inputs(trained, model.tables, parts[0], side)
    export_tower(padded_tower(trained, model.towers, side), example, side, path)
    tower = OnnxTower(path)
    assert tower.side == side
    assert tower.providers[-1] == "CPUExecutionProvider"
    assert list(PROVIDERS)[:2] == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    for part, vectors in zip(parts, wanted, strict=True):
        found = tower(padded_inputs(trained, model.tables, part, side))
        np.testing.assert_allclose(found, vectors.numpy(), atol=1e-5, rtol=0)


def test_padding_says_nothing(model: Recommender) -> None:
    """A longer pad, or none of the history, changes no vector."""
    trained = model.bundle.trained
    assert trained is not None
    assert model.users is not None
    codes = model.encoder.user_codes(model.inputs(model.users.slice(0, 5)))
    tower = padded_tower(trained, model.towers, "user")
    given = padded_inputs(trained, model.tables, codes, "user")
    wanted = model.towers.user_vectors({n: t[:] for n, t in model.tables.items()}, codes)
    torch.testing.assert_close(tower(*(given[n] for n in tower.input_names())), wanted)
    longer = dict(given)
    longer["recent"] = torch.cat([given["recent"], torch.full((5, 3, 16), 9.0)], dim=1)
    longer["recent_mask"] = torch.cat([given["recent_mask"], torch.zeros(5, 3)], dim=1)
    torch.testing.assert_close(tower(*(longer[n] for n in tower.input_names())), wanted)


def test_another_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "x.onnx").write_bytes(b"no tower")
    with pytest.raises(BundleError, match="no exported tower"):
        OnnxTower(tmp_path / "x.onnx")
