"""Optimizer state of a finished training on disk, for the training that continues from it.

`towers.safetensors` (keys `<parameter>/<name>`), `<table>.safetensors` (keys are the state's
names, the first dimension is the row; numbers of the whole table have none) and, written last,
`state.json` with the optimizers and the digest of every file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor

from models.config import OptimizerSettings, Settings
from models.errors import WarmStartError
from models.weights import Part, part_of, verify_parts

STATE = "state.json"
STATE_FOLDER = "optimizer_state"
"""Folder of the state beside the weights."""
TOWERS = "towers.safetensors"


class StateFile(Settings):
    """Content of `state.json`."""

    optimizer: OptimizerSettings
    """The optimizers whose state it is."""
    parts: dict[str, Part]
    """The files."""

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(part.bytes for part in self.parts.values())


def write_state(
    folder: Path,
    optimizer: OptimizerSettings,
    towers: Mapping[str, Tensor],
    tables: Iterable[tuple[str, Mapping[str, Tensor]]],
) -> StateFile:
    """Writes the state; the folder is complete when `state.json` is in it.

    Args:
        folder: Local folder; made when it is missing.
        optimizer: The optimizers.
        towers: State of the towers' parameters by `<parameter>/<name>`.
        tables: Name and state of each table, one held in memory at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE).unlink(missing_ok=True)
    names = [TOWERS]
    save_file({name: t.detach().cpu().contiguous() for name, t in towers.items()}, folder / TOWERS)
    for table, state in tables:
        names.append(f"tables/{table}.safetensors")
        (folder / "tables").mkdir(exist_ok=True)
        save_file(
            {name: t.detach().cpu().contiguous() for name, t in state.items()}, folder / names[-1]
        )
    content = StateFile(optimizer=optimizer, parts={n: part_of(folder / n) for n in names})
    marker = folder / f"{STATE}.partial"
    marker.write_text(content.model_dump_json(indent=1), encoding="utf-8")
    marker.replace(folder / STATE)
    return content


def read_state_file(folder: Path) -> StateFile:
    """Reads `state.json` and checks the files that it names.

    Raises:
        WarmStartError: The state is missing or damaged.
        BundleError: A file is missing, truncated, or another state's.
    """
    try:
        content = StateFile.model_validate_json((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise WarmStartError(f"the optimizer state {folder} cannot be read: {error}") from error
    verify_parts(folder, content.parts)
    return content
