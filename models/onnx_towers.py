"""The towers as ONNX: padded vectors in, a user's or an item's vector out.

The lookup stays outside, where the tables are mapped and quantised; a file holds what a tower has
learned beside them. An ID comes as its vector `[B, D]`; a list or a history as the vectors of its
elements `[B, L, D]`, oldest first, with a mask `[B, L]` of ones and, behind them, zeros. B and L
are free. One file serves CPUs and GPUs: it names the providers that ONNX Runtime should try.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.config import FeatureSettings
from models.encoder import TowerInputs
from models.errors import BundleError
from models.jagged import Jagged
from models.stored_rows import StoredRows
from models.towers import AttentionPool, MeanPool, Tower
from models.weights import TrainedModel

PROVIDERS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
"""What ONNX Runtime should run a tower on, the best first."""
NUMBERS = "numbers"
VECTOR = "vector"
_MASK = "_mask"
_PROVIDERS = "providers"
_SIDE = "tower"

Side = Literal["user", "item"]


class PaddedTower(nn.Module):
    """A tower on padded vectors instead of codes.

    Args:
        tower: The trained tower.
        features: Its coded features, in their order.
        numeric: Whether it reads numbers, too.
    """

    def __init__(self, tower: Tower, features: tuple[FeatureSettings, ...], numeric: bool) -> None:
        super().__init__()
        self._features = features
        self._numeric = numeric
        self._normalise = tower._normalise
        self.pools = tower.pools
        self.mlp = tower.mlp

    def input_names(self) -> list[str]:
        """Names of the inputs, in the order of `forward`."""
        names = []
        for f in self._features:
            names += [f.name] if f.kind == "id" else [f.name, f.name + _MASK]
        return names + ([NUMBERS] if self._numeric else [])

    def forward(self, *inputs: Tensor) -> Tensor:
        """Vectors `[B, dim]` of inputs as `input_names` lists them."""
        given = dict(zip(self.input_names(), inputs, strict=True))
        pooled = []
        for f in self._features:
            vectors = given[f.name]
            if f.kind != "id":
                vectors = _pooled(self.pools[f.name], vectors, given[f.name + _MASK])
            pooled.append(vectors)
        if self._numeric:
            pooled.append(given[NUMBERS])
        found = self.mlp(torch.cat(pooled, dim=1))
        return nn.functional.normalize(found, dim=1) if self._normalise else found


def _pooled(pool: nn.Module, vectors: Tensor, mask: Tensor) -> Tensor:
    """What a pool of `models.towers` makes of elements that are padded, `[B, D]`."""
    if not isinstance(pool, AttentionPool):
        total = (vectors * mask[:, :, None]).sum(1)
        if isinstance(pool, MeanPool):
            total = total / mask.sum(1, keepdim=True).clamp(min=1)
        return total
    scores = vectors @ pool.query
    if pool.recency is not None:
        # The newest element is the last one that the mask lets in.
        age = mask.sum(1, keepdim=True) - mask.cumsum(1)
        scores = scores + pool.recency[age.clamp(0, len(pool.recency) - 1).long()]
    scores = scores.masked_fill(mask == 0, -1e9)
    powers = (scores - scores.amax(1, keepdim=True)).exp() * mask
    weights = powers / powers.sum(1, keepdim=True).clamp(min=1e-30)
    return (vectors * weights[:, :, None]).sum(1)


def padded_tower(trained: TrainedModel, towers: Any, side: Side) -> PaddedTower:
    """A tower of a trained model, for padded inputs."""
    settings = getattr(trained.model, side)
    tower = PaddedTower(getattr(towers, side), settings.coded, bool(settings.numeric))
    return tower.eval().requires_grad_(False)


def padded_inputs(
    trained: TrainedModel, tables: Mapping[str, StoredRows], codes: TowerInputs, side: Side
) -> dict[str, Tensor]:
    """Codes of B users or items as the inputs of a padded tower, by name.

    Args:
        trained: The model.
        tables: Its embedding tables.
        codes: Codes by feature.
        side: Whose tower.
    """
    found: dict[str, Tensor] = {}
    for f in getattr(trained.model, side).coded:
        hashes = 1 if f.table.startswith("full_") else trained.table_hashes[f.table]
        elements = _elements(tables[f.table], codes[f.name], hashes)
        lengths = codes[f.name].lengths // hashes
        if f.kind == "id":
            # An ID that is absent, as a missing attribute's, is a zero vector.
            vectors = elements.new_zeros(len(lengths), elements.shape[1])
            vectors[lengths > 0] = elements
            found[f.name] = vectors
            continue
        longest = max(1, int(lengths.max())) if len(lengths) else 1
        mask = torch.arange(longest)[None, :] < lengths[:, None]
        vectors = elements.new_zeros(*mask.shape, elements.shape[1])
        vectors[mask] = elements
        found |= {f.name: vectors, f.name + _MASK: mask.float()}
    if codes.numbers is not None:
        found[NUMBERS] = codes.numbers.float()
    return found


def _elements(table: StoredRows, codes: Jagged, hashes: int) -> Tensor:
    """Vector of each element, the sum of its rows, `[E, D]`."""
    rows = table.select(codes.values)
    return rows.view(-1, hashes, rows.shape[1]).sum(1)


def export_tower(tower: PaddedTower, example: Mapping[str, Tensor], side: Side, path: Path) -> None:
    """Writes a tower as ONNX.

    Args:
        tower: The tower.
        example: Inputs of at least two users or items.
        side: Whose tower it is; kept in the file.
        path: The file.

    Raises:
        BundleError: The packages that export ONNX are not installed.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  torch's exporter writes its operators with it
    except ImportError as error:
        raise BundleError(
            f"exporting to ONNX needs {error.name}: pip install 'tailtower[onnx]'"
        ) from error
    batch, names = torch.export.Dim("batch", min=1), tower.input_names()
    shapes: list[dict[int, Any]] = []
    for name in names:
        feature = name.removesuffix(_MASK)
        length = torch.export.Dim(f"length_{feature}", min=1)
        padded = f"{feature}{_MASK}" in names
        shapes.append({0: batch, 1: length} if padded else {0: batch})
    with warnings.catch_warnings():
        # What the exporter says about its own internals is for its authors.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            tower,
            tuple(example[name] for name in names),
            input_names=names,
            output_names=[VECTOR],
            dynamic_shapes=(tuple(shapes),),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {_PROVIDERS: json.dumps(PROVIDERS), _SIDE: side})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


class OnnxTower:
    """A tower in ONNX Runtime, on the best of the providers that the file names and the host has.

    Args:
        path: The file.
        threads: Threads of one call.

    Raises:
        BundleError: ONNX Runtime is not installed, or the file is none of `export_tower`.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise BundleError(
                "running a tower as ONNX needs onnxruntime: pip install 'tailtower[onnx]'"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
            known = self._session.get_modelmeta().custom_metadata_map
            wanted = json.loads(known[_PROVIDERS])
        except Exception as error:  # ONNX Runtime's own errors have no common base
            raise BundleError(f"{path} is no exported tower: {error}") from error
        here = onnxruntime.get_available_providers()
        self.side: str = known[_SIDE]
        """Whose tower it is."""
        self.providers: list[str] = [name for name in wanted if name in here]
        """What it runs on, the best first."""
        self._session.set_providers(self.providers)

    def __call__(self, inputs: Mapping[str, Tensor]) -> npt.NDArray[np.float32]:
        """Vectors float32 `[B, dim]`; inputs as `padded_inputs` makes them."""
        names = {i.name for i in self._session.get_inputs()}
        given = {name: value.numpy() for name, value in inputs.items() if name in names}
        vectors: npt.NDArray[np.float32] = self._session.run([VECTOR], given)[0]
        return vectors
