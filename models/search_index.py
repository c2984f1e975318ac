"""An approximate index over the item vectors: inverted lists with 8-bit codes, by FAISS.

Items are grouped by k-means; a search scores the items of the few groups that are closest to the
user (`probes` of them) by their 8-bit codes (Jégou, Douze, Schmid, "Product quantization for
nearest neighbor search", 2011, without the product). What it finds is scored again by the served
vectors, so scores are those of the exact search. The file is memory-mapped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.errors import BundleError
from models.jagged import Jagged

_TRAINED_ON = 64  # items a list; FAISS warns below 39
_MOST_SEEN = 2048
_ROUNDS = 10  # of the k-means
_MORE = 1.2  # candidates over items wanted: their 8-bit scores may be in another order


class SearchIndex:
    """Finds items whose inner product with a user's vector is among the largest.

    Args:
        index: FAISS' index; ids are corpus indices.
        probes: Lists that a search looks into.
    """

    def __init__(self, index: Any, probes: int) -> None:
        self._index = index
        self.probes = probes

    @classmethod
    def build(cls, vectors: Tensor, *, seed: int = 17) -> SearchIndex:
        """Builds an index; it looks into one list until `probes` says otherwise.

        Args:
            vectors: Item vectors, float32 `[I, D]`.
            seed: Of the k-means.

        Raises:
            BundleError: FAISS is not installed.
        """
        faiss = _faiss()
        items, dim = vectors.shape
        lists = max(1, min(round(items**0.5), items // 40))
        coarse = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFScalarQuantizer(
            coarse, dim, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        # Groups by distance, not by product: else the longest centre attracts everything.
        index.cp.spherical = False
        index.cp.niter = _ROUNDS
        index.cp.seed = seed
        index.clustering_index = faiss.IndexFlatL2(dim)
        sample = torch.randperm(items, generator=torch.Generator().manual_seed(seed))
        rows = vectors[sample[: lists * _TRAINED_ON]].contiguous().numpy()
        index.train(rows)
        index.add(vectors.contiguous().numpy())
        return cls(index, 1)

    @property
    def lists(self) -> int:
        """Groups of items."""
        return int(self._index.nlist)

    def save(self, path: Path) -> None:
        """Writes the index; `probes` is not part of the file."""
        _faiss().write_index(self._index, str(path))

    @classmethod
    def load(cls, path: Path, *, probes: int, items: int, dim: int) -> SearchIndex:
        """Maps an index that `save` wrote into memory.

        Args:
            path: The file.
            probes: Lists that a search looks into.
            items: Items that it must have.
            dim: Width of the vectors that it must have.

        Raises:
            BundleError: The file is no index, belongs to other vectors, or FAISS is not installed.
                Whether it was cut short has to be known before: a map of it cannot tell.
        """
        faiss = _faiss()
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise BundleError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
        if (index.ntotal, index.d) != (items, dim):
            raise BundleError(
                f"{path} has {index.ntotal} vectors of width {index.d} for {items} items of width "
                f"{dim}: it belongs to another model"
            )
        return cls(index, probes)

    def search(self, users: Tensor, k: int, seen: Jagged | None = None) -> Tensor:
        """Candidates for each user's `k` best items: a few more than `k`, in no certain order.

        Seen items are found, too, and then left out: FAISS is several times slower where it asks
        about every item.

        Args:
            users: User vectors, float32 `[U, D]`.
            k: Items wanted.
            seen: Items to leave out, one row for each user.

        Returns:
            Corpus indices int64 `[U, K]` with K ≥ k, or all items; -1 where the lists hold fewer.
        """
        faiss = _faiss()
        known = 0 if seen is None or not len(seen.values) else int(seen.lengths.max())
        wanted = int(k * _MORE) + 8 + min(known, _MOST_SEEN)
        wanted = min(wanted, int(self._index.ntotal))
        how = faiss.SearchParametersIVF(nprobe=self.probes)
        vectors = np.ascontiguousarray(users.numpy(), dtype=np.float32)
        found = torch.from_numpy(self._index.search(vectors, wanted, params=how)[1])
        if known and seen is not None:
            for row in range(len(users)):
                hidden = seen.slice(row, row + 1).values
                found[row][torch.isin(found[row], hidden)] = -1
        return found


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise BundleError(
            "an approximate index needs FAISS: pip install 'tailtower[serving]', or set "
            "serving.index: exact"
        ) from error
    return faiss
