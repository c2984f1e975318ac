"""Trained weights on disk: what training leaves behind and a bundle is made from.

`towers.safetensors`, `tables/<table>.safetensors` (key `weight`, `[rows, dim]`) and, written
last, `weights.json` with the settings and the digest of every part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.config import EmbeddingTableSettings, ModelSettings, Settings, TrainJob
from models.encoder import Encoder
from models.errors import BundleError
from models.numeric_features import NumericStatistics
from models.two_tower import TwoTower

WEIGHTS = "weights.json"
TOWERS = "towers.safetensors"
_ITEM_BLOCK = 8192


class Part(Settings):
    """One file of a set that belongs together."""

    bytes: int
    """Size."""
    sha256: str
    """Digest of the content, hex."""


class TrainedModel(Settings):
    """What is needed to use trained weights, besides the weights."""

    kind: Literal["two_tower", "traditional"]
    """Which trainer made them."""
    model: ModelSettings
    """The model; the traditional baseline's features name its own full tables."""
    tables: dict[str, EmbeddingTableSettings]
    """The embedding tables."""
    table_rows: dict[str, int]
    """Rows of each table."""
    table_hashes: dict[str, int]
    """Codes of one element, by table."""
    num_users: int
    """Train users; the traditional baseline has a row for each."""
    digest: str
    """Digest of the training job."""
    numeric: dict[str, dict[str, NumericStatistics]] = Field(default_factory=dict)
    """Statistics of the numeric features, by tower and name."""

    def towers(self, seed: int = 0) -> TwoTower:
        """The towers with initial weights."""
        return TwoTower(self.model, self.tables, self.table_hashes, seed)

    def parameters(self) -> int:
        """Number of trained parameters, padding rows included."""
        rows = sum(self.table_rows[name] * table.dim for name, table in self.tables.items())
        return rows + sum(p.numel() for p in self.towers().parameters())


def trained_model(
    job: TrainJob, numeric: Mapping[str, Mapping[str, NumericStatistics]]
) -> TrainedModel:
    """The settings that go beside the weights of a job, and what its numbers were like."""
    own = {name: getattr(job, name) for name in TrainedModel.model_fields if name != "numeric"}
    return TrainedModel(**own, numeric={side: dict(n) for side, n in numeric.items()})


class WeightsFile(Settings):
    """Content of `weights.json`."""

    trained: TrainedModel
    """Settings of the model."""
    parts: dict[str, Part]
    """The files, by path below the folder."""


def part_of(path: Path) -> Part:
    """Size and digest of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Part(bytes=path.stat().st_size, sha256=digest)


def verify_parts(folder: Path, parts: Mapping[str, Part], *, digests: bool = True) -> None:
    """Checks that every part is there and unchanged.

    Args:
        folder: Where the parts are.
        parts: What they should be.
        digests: Whether they are read; else only their sizes are compared.

    Raises:
        BundleError: A part is missing, truncated, or another model's.
    """
    for name, part in parts.items():
        path = folder / name
        if not path.is_file():
            raise BundleError(f"{path} is missing: the folder was not copied completely")
        size = path.stat().st_size
        if size != part.bytes:
            raise BundleError(f"{path} has {size} bytes instead of {part.bytes}: it was truncated")
        if digests and part_of(path).sha256 != part.sha256:
            raise BundleError(f"{path} is damaged, or belongs to another model")


def write_weights(
    folder: Path,
    trained: TrainedModel,
    towers: Mapping[str, Tensor],
    tables: Iterable[tuple[str, Tensor]],
) -> None:
    """Writes trained weights; the folder is complete when `weights.json` is in it.

    Args:
        folder: Local folder; made when it is missing.
        trained: Settings of the model.
        towers: State of the towers.
        tables: Name and weight `[rows, dim]` of each table, one held in memory at a time.
    """
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS).unlink(missing_ok=True)
    save_file({name: t.detach().cpu().contiguous() for name, t in towers.items()}, folder / TOWERS)
    names = [TOWERS]
    for name, weight in tables:
        names.append(f"tables/{name}.safetensors")
        save_file({"weight": weight.detach().cpu().contiguous()}, folder / names[-1])
    parts = {name: part_of(folder / name) for name in names}
    content = WeightsFile(trained=trained, parts=parts).model_dump_json(indent=1)
    marker = folder / f"{WEIGHTS}.partial"
    marker.write_text(content, encoding="utf-8")
    marker.replace(folder / WEIGHTS)


def read_weights_file(folder: Path) -> WeightsFile | None:
    """The settings beside finished weights, or None when training has not finished.

    Raises:
        BundleError: The file is damaged.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        return None
    try:
        return WeightsFile.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} is damaged: {error}") from error


def load_towers(folder: Path, trained: TrainedModel) -> TwoTower:
    """The trained towers, for use without gradients.

    Raises:
        BundleError: The weights do not fit the settings.
    """
    towers = trained.towers()
    try:
        towers.load_state_dict(load_file(folder / TOWERS))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise BundleError(f"{folder / TOWERS} does not fit its settings: {error}") from error
    return towers.requires_grad_(False).eval()


def load_tables(folder: Path, trained: TrainedModel) -> dict[str, Tensor]:
    """The trained tables as float32 `[rows, dim]`, by name.

    Raises:
        BundleError: A table does not fit the settings.
    """
    tables = {}
    for name, settings in trained.tables.items():
        path = folder / f"tables/{name}.safetensors"
        try:
            weight = load_file(path)["weight"]
        except (SafetensorError, OSError, KeyError) as error:
            raise BundleError(f"{path} cannot be read: {error}") from error
        if weight.shape != (trained.table_rows[name], settings.dim):
            raise BundleError(f"{path} has shape {tuple(weight.shape)}, which is not the model's")
        tables[name] = weight.float()
    return tables


@torch.no_grad()
def compute_item_vectors(
    towers: TwoTower, tables: Mapping[str, Tensor], encoder: Encoder, num_items: int
) -> Tensor:
    """Vectors of the whole corpus, float32 `[I, dim]`."""
    vectors = [
        towers.item_vectors(
            tables, encoder.item_codes(torch.arange(first, min(first + _ITEM_BLOCK, num_items)))
        )
        for first in range(0, num_items, _ITEM_BLOCK)
    ]
    return torch.cat(vectors) if vectors else torch.zeros(0, 0)
