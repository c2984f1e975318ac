"""One tower: pooled embeddings of its features, an MLP, a vector.

A tower does not own embedding tables. It is given rows and the positions of its codes in them:
in training the rows that a macro-batch touches, in serving the whole exported tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.config import EmbeddingTableSettings, FeatureSettings, TowerSettings
from models.jagged import Jagged

_PORTION = 1024  # rows; enough for products to run at full speed


class Tower(nn.Module):
    """Features to vectors.

    Args:
        settings: Features and hidden widths.
        tables: Embedding tables by name.
        hashes: Codes of one element, by table.
        dim: Width of the vectors.
        normalise: Whether vectors have length 1.
        recompute: Whether activations inside the MLP are computed again in the backward pass, a
            portion of rows at a time, instead of kept.
        layers: Type that the MLP computes in; None for that of its weights. The vectors
            have the type of the embeddings all the same.
    """

    def __init__(
        self,
        settings: TowerSettings,
        tables: Mapping[str, EmbeddingTableSettings],
        hashes: Mapping[str, int],
        dim: int,
        normalise: bool,
        recompute: bool = False,
        layers: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._recompute = recompute
        self._layers = layers
        self._tables = {f.name: f.table for f in settings.coded}
        self._numbers = len(settings.numeric)
        self._normalise = normalise
        self.pools = nn.ModuleDict(
            {f.name: _pool(f, tables[f.table].dim, hashes[f.table]) for f in settings.coded}
        )
        embedded = sum(tables[f.table].dim for f in settings.coded)
        widths = [embedded + self._numbers, *settings.hidden]
        modules: list[nn.Module] = []
        for width_in, width_out in pairwise(widths):
            # Smooth, because exact accumulation is compared with a reference: a kink would
            # turn rounding into different gradients.
            modules += [nn.Linear(width_in, width_out), nn.SiLU()]
        self.mlp = nn.Sequential(*modules, nn.Linear(widths[-1], dim))

    def forward(self, rows: Mapping[str, Tensor], codes: Mapping[str, Jagged]) -> Tensor:
        """Vectors of B users or items.

        Args:
            rows: Embedding rows by table, `[R, table dim]`.
            codes: Positions in those rows by feature, B rows each; with numeric features,
                `TowerInputs`.

        Returns:
            `[B, dim]`.
        """
        pooled = [pool(rows[self._tables[name]], codes[name]) for name, pool in self.pools.items()]
        if self._numbers:
            numbers = getattr(codes, "numbers", None)
            assert numbers is not None, "the tower has numeric features"
            pooled.append(numbers.to(pooled[0].dtype))
        together = torch.cat(pooled, dim=1)
        if self._layers is None:
            vectors = self._through_mlp(together)
        else:
            with torch.autocast(together.device.type, self._layers):
                vectors = self._through_mlp(together)
            # What the loss does with the vectors needs the longer type.
            vectors = vectors.to(together.dtype)
        return F.normalize(vectors, dim=1) if self._normalise else vectors

    def _through_mlp(self, pooled: Tensor) -> Tensor:
        if not (self._recompute and torch.is_grad_enabled()):
            vectors: Tensor = self.mlp(pooled)
            return vectors
        portions = [
            # The layers draw no random numbers.
            checkpoint(self.mlp, portion, use_reentrant=False, preserve_rng_state=False)
            for portion in torch.split(pooled, _PORTION)
        ]
        return torch.cat(portions)


class SingleRow(nn.Module):
    """The vector of an ID of one code."""

    def forward(self, rows: Tensor, codes: Jagged) -> Tensor:
        """`[R, D]` rows and B rows of at most one position to `[B, D]`; zero without one."""
        if codes.values.numel() < len(codes):
            return bag_sum(rows, codes)
        return F.embedding(codes.values, rows)


class SumPool(nn.Module):
    """Sum of the elements' vectors."""

    def forward(self, rows: Tensor, codes: Jagged) -> Tensor:
        """`[R, D]` rows and B rows of positions to `[B, D]`; zero where a row is empty."""
        return bag_sum(rows, codes)


class MeanPool(nn.Module):
    """Mean of the elements' vectors.

    Args:
        hashes: Codes of one element.
    """

    def __init__(self, hashes: int) -> None:
        super().__init__()
        self._hashes = hashes

    def forward(self, rows: Tensor, codes: Jagged) -> Tensor:
        """`[R, D]` rows and B rows of positions to `[B, D]`; zero where a row is empty."""
        elements = (codes.lengths // self._hashes).clamp(min=1)
        return bag_sum(rows, codes) / elements[:, None]


class AttentionPool(nn.Module):
    """Mean weighted by a segment softmax over the elements of each row.

    An element's score is its vector's inner product with a learned query, plus, in a history, a
    learned bias for its distance from the newest element. All parameters start at zero: the
    pool starts as a mean. Scores are linear in the vectors, so they cost one product for each
    row that is touched and nothing of width D for each element.

    Args:
        dim: Width of the vectors.
        hashes: Codes of one element.
        positions: Longest history; 0 where the order of elements means nothing.
    """

    def __init__(self, dim: int, hashes: int, positions: int) -> None:
        super().__init__()
        self._hashes = hashes
        self._positions = positions
        self.query = nn.Parameter(torch.zeros(dim))
        self.recency = nn.Parameter(torch.zeros(positions)) if positions else None

    def forward(self, rows: Tensor, codes: Jagged) -> Tensor:
        """`[R, D]` rows and B rows of positions to `[B, D]`; zero where a row is empty."""
        if codes.values.numel() == 0:
            return bag_sum(rows, codes)
        elements = Jagged(codes.values, codes.offsets // self._hashes)
        count = codes.values.numel() // self._hashes
        segment = torch.repeat_interleave(
            torch.arange(len(codes), device=rows.device), elements.lengths, output_size=count
        )
        score = (rows @ self.query)[codes.values].view(count, self._hashes).sum(1)
        if self.recency is not None:
            place = torch.arange(count, device=rows.device)
            age = elements.offsets[1:][segment] - 1 - place
            score = score + self.recency[age.clamp(max=self._positions - 1)]
        weights = segment_softmax(score, segment, len(codes))
        return bag_sum(rows, codes, weights.repeat_interleave(self._hashes))


def bag_sum(rows: Tensor, codes: Jagged, weights: Tensor | None = None) -> Tensor:
    """Sum of rows for each bag of positions, optionally weighted.

    Args:
        rows: `[R, D]`.
        codes: B bags of positions in `rows`.
        weights: One weight a position, `[V]`.

    Returns:
        `[B, D]`; zero for an empty bag.
    """
    if codes.values.numel() == 0:
        # Keeps the result attached to `rows`; the kernel refuses a batch without elements.
        return rows.new_zeros(len(codes), rows.shape[1]) + rows.sum() * 0
    return F.embedding_bag(
        codes.values,
        rows,
        codes.offsets,
        mode="sum",
        include_last_offset=True,
        per_sample_weights=weights,
    )


def segment_softmax(scores: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Softmax over the elements of each segment.

    Args:
        scores: One score an element, `[V]`.
        segment: Segment of each element, int64 `[V]`.
        segments: How many segments there are.

    Returns:
        Weights `[V]` that sum to 1 in each segment that has elements.
    """
    highest = scores.new_full((segments,), -torch.inf)
    highest = highest.scatter_reduce(0, segment, scores.detach(), "amax")
    powers = (scores - highest[segment]).exp()
    totals = scores.new_zeros(segments).index_add(0, segment, powers)
    return powers / totals[segment]


def _pool(feature: FeatureSettings, dim: int, hashes: int) -> nn.Module:
    if feature.kind == "id" and hashes == 1:
        return SingleRow()
    if feature.kind == "id" or feature.pooling == "sum":
        return SumPool()
    if feature.pooling == "mean":
        return MeanPool(hashes)
    return AttentionPool(dim, hashes, feature.max_length if feature.kind == "history" else 0)
