"""What every loss of the training looks like, and which one the settings ask for."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from models.candidates import Candidates, Positives
from models.config import LossSettings, ModelSettings
from models.pairwise_loss import PairwiseLoss
from models.sampled_softmax import SampledSoftmax


class Loss(Protocol):
    """A loss of users over candidates."""

    def __call__(
        self,
        users: Tensor,
        items: Tensor,
        candidates: Candidates,
        positives: Positives,
        weight: Tensor,
    ) -> Tensor:
        """Weighted sum of the users' losses, a scalar with a gradient for both towers' vectors.

        Args:
            users: User vectors `[B, D]`.
            items: Vectors of the candidates `[C, D]`.
            candidates: What the columns are.
            positives: Each user's own item and what else is no negative of theirs.
            weight: Weight of each example `[B]`.
        """


def loss_of(model: ModelSettings, settings: LossSettings) -> Loss:
    """The loss that the settings ask for."""
    if settings.kind == "softmax":
        return SampledSoftmax(
            model.temperature, model.similarity == "cosine", settings.logq, settings.chunk
        )
    return PairwiseLoss(
        settings.kind,
        # The cosine contrastive loss compares cosines with its margin.
        1.0 if settings.kind == "ccl" else 1.0 / model.temperature,
        settings.negative_weight,
        settings.margin,
        settings.chunk,
    )
