"""One model's results on the test users: per-user rows from which everything is recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from models.jagged import Jagged
from models.metrics import SLICES, per_user_metrics

FREQUENCY_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Lower edges of the bins of an item's train count, for recall by frequency."""


@dataclass(frozen=True)
class TestSet:
    """What every model of a run is measured on.

    Attributes:
        user_ids: Raw IDs of the U users.
        targets: Corpus indices that each user took on the test days; no row is empty.
        user_train_count: Train interactions of each user, int64 `[U]`; 0 for new users.
        item_train_count: Train interactions of each item of the corpus, int64 `[I]`.
        slices: Slice of each item, int8 `[I]`, from `models.metrics.item_slices`.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    user_ids: pa.Array
    targets: Jagged
    user_train_count: npt.NDArray[np.int64]
    item_train_count: npt.NDArray[np.int64]
    slices: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.targets)


def measure(model: str, indices: Tensor, tests: TestSet, ks: Sequence[int]) -> pa.Table:
    """Per-user rows of one model.

    Args:
        model: Name of the model, which fills the first column.
        indices: Recommended items as indices of the corpus of `tests`, best first, int64
            `[U, K]`; -1 for none, the number of items or more for items outside that corpus.
        tests: The users and their targets.
        ks: Cut-offs.

    Returns:
        Columns `model`, `user_id`, `train_count`, `n_targets`, `recall_at_k`, `ndcg_at_k`,
        `mrr_at_k`, `hits_at_k`, and for each slice of the items `targets_<slice>` and
        `hits_at_k_<slice>`.
    """
    columns: dict[str, pa.Array | npt.NDArray[np.generic]] = {
        "model": pa.array([model] * len(tests)),
        "user_id": tests.user_ids,
        "train_count": tests.user_train_count,
        "n_targets": tests.targets.lengths.numpy().astype(np.int32),
    }
    for name, values in per_user_metrics(indices, tests.targets, ks).items():
        columns[name] = values.astype(np.int32) if name.startswith("hits_") else values
    target_slice = torch.from_numpy(tests.slices.astype(np.int64))[tests.targets.values]
    rows = tests.targets.row_ids()
    hit = hits(indices, tests.targets)
    # Only targets are hits, and targets are items of the corpus.
    shown_slice = np.full(hit.shape, -1, dtype=np.int8)
    shown_slice[hit] = tests.slices[indices.numpy()[hit]]
    for number, name in enumerate(SLICES):
        wanted = torch.bincount(rows[target_slice == number], minlength=len(tests)).numpy()
        columns[f"targets_{name}"] = wanted.astype(np.int32)
        found = shown_slice == number
        for k in ks:
            columns[f"hits_at_{k}_{name}"] = found[:, :k].sum(1, dtype=np.int32)
    return pa.table(columns)


def hits(indices: Tensor, targets: Jagged) -> npt.NDArray[np.bool_]:
    """Whether each recommendation is a target of its user, bool `[U, K]`."""
    shown = indices.numpy()
    size = max(int(shown.max(initial=0)), int(targets.values.max())) + 1
    users = np.arange(len(shown), dtype=np.int64)[:, None]
    wanted = targets.row_ids().numpy() * size + targets.values.numpy()
    found: npt.NDArray[np.bool_] = np.isin(users * size + shown, wanted) & (shown >= 0)
    return found


def coverage(indices: Tensor, num_items: int, ks: Sequence[int]) -> dict[str, float]:
    """Share of the corpus that is recommended to anybody, `coverage_at_k` for each cut-off.

    Args:
        indices: As for `measure`.
        num_items: Items in the corpus; recommendations outside it do not count.
        ks: Cut-offs.
    """
    shares = {}
    for k in ks:
        # One place more at the end for everything that does not count, -1 included.
        shown = torch.zeros(num_items + 1, dtype=torch.bool)
        shown[indices[:, :k].clamp(max=num_items)] = True
        shares[f"coverage_at_{k}"] = int(shown[:num_items].sum()) / max(num_items, 1)
    return shares


def recall_curve(indices: Tensor, targets: Jagged) -> dict[int, float]:
    """Mean recall at cut-offs from 1 to the width of `indices`."""
    width = indices.shape[1]
    cuts = [k for k in (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100, 150, 200) if k <= width]
    if width not in cuts:
        cuts.append(width)
    found = hits(indices, targets).cumsum(1) / targets.lengths.numpy()[:, None]
    return {k: float(found[:, k - 1].mean()) for k in cuts}


def recall_by_frequency(indices: Tensor, tests: TestSet, k: int) -> list[dict[str, int]]:
    """Targets and hits in the top `k`, by the train count of the target.

    Returns:
        For each bin of `FREQUENCY_EDGES`: `from` (lower edge), `items` of the corpus, `targets`
        and `hits` over all users.
    """
    edges = np.asarray(FREQUENCY_EDGES)
    bin_of_item = np.searchsorted(edges, tests.item_train_count, side="right") - 1
    hit = hits(indices, tests.targets)[:, :k]
    items = np.bincount(bin_of_item, minlength=len(edges))
    totals = np.bincount(bin_of_item[tests.targets.values.numpy()], minlength=len(edges))
    found = np.bincount(bin_of_item[indices[:, :k].numpy()[hit]], minlength=len(edges))
    return [
        {"from": int(edges[n]), "items": int(items[n]), "targets": int(totals[n]), "hits": int(h)}
        for n, h in enumerate(found)
    ]


def translation(source: pa.Array, target: pa.Array) -> npt.NDArray[np.int64]:
    """Index in the target of every element of the source.

    Elements that the target does not have get the numbers from `len(target)` on, so that they
    stay different from each other and from everything in the target.

    Args:
        source: Raw IDs, without repetition.
        target: Raw IDs of the same kind, without repetition.

    Returns:
        int64 `[len(source)]`.
    """
    found = pc.index_in(source.cast(target.type), value_set=target)
    outside = np.arange(len(source), dtype=np.int64) + len(target)
    known = pc.is_valid(found).to_numpy(zero_copy_only=False)
    return np.where(known, found.fill_null(0).to_numpy().astype(np.int64), outside)


def translate(indices: Tensor, mapping: npt.NDArray[np.int64]) -> Tensor:
    """Indices in another corpus, by a mapping from `translation`; -1 stays -1."""
    return torch.from_numpy(np.append(mapping, -1))[indices]
