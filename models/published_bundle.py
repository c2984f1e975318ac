"""From a trained bundle to the one that servers open: fewer bits a number, and maybe an index.

What it costs is measured on users of the bundle and written into `bundle.json`; beyond the bounds
of the settings nothing is written.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
from torch import Tensor

from models import retrieval
from models.batch import UserInputs
from models.bundle import (
    CORPUS,
    INDEX,
    ITEM_VECTORS,
    USERS,
    Bundle,
    Recommender,
    ServedNumbers,
    table_file,
    write_marker,
)
from models.errors import BundleError, QualityError
from models.search_index import SearchIndex
from models.serving_settings import ServingSettings
from models.stored_rows import StoredRows
from models.weights import TOWERS, load_tables, part_of

_K = 100


def publish_bundle(source: Path, target: Path, settings: ServingSettings) -> Bundle:
    """Writes the bundle that is served.

    Args:
        source: Folder of the trained bundle; every digest is checked.
        target: Local folder, new or empty. Files that do not change are hard links where the file
            system can.
        settings: How numbers are kept, and how much of the quality may be lost.

    Raises:
        BundleError: The trained bundle is damaged, is no trained model, or has no users to measure
            on; or FAISS is needed and not installed.
        QualityError: More is lost than the settings allow.
    """
    full = Recommender.load(source)
    trained = full.bundle.trained
    if trained is None or full.users is None or not len(full.users):
        raise BundleError(f"{source} has no trained model with users: it cannot be published")
    target.mkdir(parents=True, exist_ok=True)
    for name in full.bundle.parts:
        if name in (TOWERS, CORPUS, USERS) or name.startswith("vocabulary/"):
            _link(source / name, target / name)
    for name, table in load_tables(source, trained).items():
        StoredRows.of(table, settings.tables).save(target / table_file(name))
    prior = int(trained.model.prior is not None)
    vectors = StoredRows.of(full.item_vectors, settings.item_vectors, exact=prior)
    vectors.save(target / ITEM_VECTORS)
    parts = [name for name in full.bundle.parts if (target / name).is_file()]
    draft = ServedNumbers(
        tables=settings.tables,
        item_vectors=settings.item_vectors,
        probes=None,
        users=0,
        k=min(_K, max(1, full.num_items // 10)),
        user_vector_error=0.0,
        item_vector_error=_distance(full.vectors, vectors),
        overlap=1.0,
        recall=None,
    )
    bundle = full.bundle.model_copy(
        update={"served": draft, "parts": {name: part_of(target / name) for name in parts}}
    )
    users = _sample(full, settings.sample_users)
    served, user_vectors = _overlap(full, Recommender(target, bundle), users, draft)
    _refuse(served.overlap, settings.min_overlap, "of the best items by full precision are left")
    if settings.index == "approximate" or (
        settings.index == "auto" and full.num_items >= settings.index_from
    ):
        index = SearchIndex.build(full.item_vectors)
        recall = _choose_probes(index, user_vectors, vectors, served.k, settings.min_recall)
        _refuse(recall, settings.min_recall, "of the exact search's items are found by the index")
        index.save(target / INDEX)
        parts.append(INDEX)
        served = served.model_copy(update={"probes": index.probes, "recall": recall})
    bundle = bundle.model_copy(
        update={"served": served, "parts": {name: part_of(target / name) for name in parts}}
    )
    write_marker(target, bundle)
    return bundle


def _overlap(
    full: Recommender, quick: Recommender, users: UserInputs, draft: ServedNumbers
) -> tuple[ServedNumbers, Tensor]:
    """What the numbers cost before any index, and the users' vectors as served."""
    exact, near = full.user_vectors(users), quick.user_vectors(users)
    wanted, _ = retrieval.top_k(exact, full.vectors, draft.k)
    found, _ = retrieval.top_k(near, quick.vectors, draft.k)
    distance = (exact - near).norm(dim=1).max()
    measured = draft.model_copy(
        update={
            "users": len(users),
            "user_vector_error": float(distance),
            "overlap": share_found(wanted, found),
        }
    )
    return measured, near


def _choose_probes(
    index: SearchIndex, users: Tensor, vectors: StoredRows, k: int, bound: float
) -> float:
    """Sets the smallest number of lists that finds enough; returns the recall on other users.

    It is chosen on every second user and stated on the others, who had no say in it.
    """
    wanted, _ = retrieval.top_k(users, vectors, k)

    def recall(rows: slice) -> float:
        found, _ = retrieval.approximate_top_k(users[rows], vectors, k, index)
        return share_found(wanted[rows], found)

    # A quarter of what may be lost is kept as a margin between the two halves.
    goal = bound + (1 - bound) / 4
    while recall(slice(0, None, 2)) < goal and index.probes < index.lists:
        index.probes = min(index.lists, 1 + index.probes * 5 // 4)
    return recall(slice(1, None, 2))


def share_found(wanted: Tensor, found: Tensor) -> float:
    """Share of items that another search finds, too, mean over users.

    Args:
        wanted: Corpus indices `[U, K]`, -1 for none.
        found: The other search's.
    """
    both = (wanted[:, :, None] == found[:, None, :]).any(2) & (wanted >= 0)
    return float(both.sum() / (wanted >= 0).sum().clamp(min=1))


def _refuse(share: float, bound: float, what: str) -> None:
    if share < bound:
        raise QualityError(f"only {share:.4f} {what}; {bound:.4f} are asked for")


def _sample(full: Recommender, count: int) -> UserInputs:
    """Users spread evenly over those that the bundle knows."""
    assert full.users is not None
    rows = np.linspace(0, len(full.users) - 1, min(count, len(full.users))).astype(np.int64)
    return full.inputs(full.users.take(rows))


def _distance(exact: StoredRows, near: StoredRows, block: int = 1 << 16) -> float:
    """Largest distance between two rows of the same number."""
    blocks = (slice(first, first + block) for first in range(0, len(exact), block))
    return max((float((exact[b] - near[b]).norm(dim=1).max()) for b in blocks), default=0.0)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
