"""Protects served rows: each layout is FBGEMM's, loses no more than its step, keeps the padding row
and exact columns, and is mapped from its file; a file of other rows is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.errors import BundleError
from models.serving_settings import Precision
from models.stored_rows import StoredRows

ROWS, DIM = 50, 12


@pytest.fixture
def rows() -> torch.Tensor:
    found = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(3))
    found[0] = 0
    return found


def _largest_step(rows: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Half of what lies between two neighbouring numbers of a row, by the definition, `[N, 1]`."""
    spread = rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)
    largest = rows.abs().amax(1, keepdim=True)
    if precision == "int8":
        return spread / 255 / 2
    if precision == "int4":
        # Scale and smallest value are fp16 numbers: each is off by 2^-11 of itself at most.
        return spread / 15 / 2 + 2 * largest / 2**10
    return largest / 2**11 if precision == "fp16" else largest * 0


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_a_number_is_off_by_half_a_step_at_most(rows: torch.Tensor, precision: Precision) -> None:
    stored = StoredRows.of(rows, precision)
    error = (stored[:] - rows).abs()
    assert bool((error <= _largest_step(rows, precision) + 1e-6).all())
    assert torch.equal(stored[:][0], torch.zeros(DIM))
    wanted = torch.tensor([7, 0, 7, 49])
    assert torch.equal(stored.select(wanted), stored[:][wanted])
    assert stored.select(torch.tensor([], dtype=torch.int64)).shape == (0, DIM)
    assert stored.shape == (ROWS, DIM)


@pytest.mark.parametrize(
    ("precision", "bytes_a_row"), [("fp32", 48), ("fp16", 24), ("int8", 20), ("int4", 10)]
)
def test_a_row_takes_so_many_bytes(
    rows: torch.Tensor, precision: Precision, bytes_a_row: int
) -> None:
    assert StoredRows.of(rows, precision).bytes == ROWS * bytes_a_row


def test_the_layouts_are_those_of_fbgemm(rows: torch.Tensor) -> None:
    pytest.importorskip("fbgemm_gpu")
    eight = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows)
    assert torch.equal(StoredRows.of(rows, "int8").stored, eight)
    four = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 4)
    assert torch.equal(StoredRows.of(rows, "int4").stored, four)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_exact_columns_stay(rows: torch.Tensor, precision: Precision, tmp_path: Path) -> None:
    rows[:, -1] *= 1000  # would take the numbers beside it all their steps
    stored = StoredRows.of(rows, precision, exact=1)
    assert torch.equal(stored[:][:, -1], rows[:, -1])
    few = _largest_step(rows[:, :-1], precision) + 1e-6
    assert bool(((stored[:][:, :-1] - rows[:, :-1]).abs() <= few).all())
    stored.save(tmp_path / "rows")
    again = StoredRows.load(tmp_path / "rows", precision, ROWS, DIM)
    assert torch.equal(again[:], stored[:])
    assert again.shape == stored.shape


def test_an_odd_width_in_four_bits(tmp_path: Path) -> None:
    rows = torch.arange(35.0).view(5, 7)
    stored = StoredRows.of(rows, "int4")
    assert stored[:].shape == (5, 7)
    assert float((stored[:] - rows).abs().max()) < 0.25
    stored.save(tmp_path / "rows")
    assert torch.equal(StoredRows.load(tmp_path / "rows", "int4", 5, 7)[:], stored[:])


def test_a_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    StoredRows.of(torch.randn(1000, 64), "int8").save(tmp_path / "table.safetensors")
    loaded = StoredRows.load(tmp_path / "table.safetensors", "int8", 1000, 64)
    maps = Path("/proc/self/maps").read_text()
    assert str(tmp_path / "table.safetensors") in maps
    assert len(loaded) == 1000


def test_other_rows_are_refused(rows: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    StoredRows.of(rows, "int8").save(path)
    for precision, count, dim in (("int8", ROWS + 1, DIM), ("int8", ROWS, 8), ("fp32", ROWS, DIM)):
        with pytest.raises(BundleError, match=r"rows\.safetensors holds"):
            StoredRows.load(path, precision, count, dim)  # type: ignore[arg-type]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match="cannot be read"):
        StoredRows.load(path, "int8", ROWS, DIM)
