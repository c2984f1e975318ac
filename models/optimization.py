"""The optimizer step: towers and tables move together, once for each macro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from models import collectives
from models.config import OptimizerSettings
from models.embedding_tables import EmbeddingTables, FetchedRows
from models.precision import LossScale


class Optimization:
    """Both optimizers, their common schedule, and the limit of the gradient.

    Args:
        settings: The optimizers.
        towers: Module whose parameters are dense.
        tables: The embedding tables.
        scale: Scale of the loss, which the gradients have when they come here.
    """

    def __init__(
        self,
        settings: OptimizerSettings,
        towers: nn.Module,
        tables: EmbeddingTables,
        scale: LossScale,
    ) -> None:
        self._settings = settings
        self._names = [name for name, _ in towers.named_parameters()]
        self._parameters = list(towers.parameters())
        self._tables = tables
        self.scale = scale
        """Scale of the loss."""
        self._dense = dense_optimizer(settings, self._parameters)
        self._factor = 1.0

    def begin(self, number: int) -> None:
        """Prepares a step; to be called before rows are fetched, which fixes their learning rate.

        Args:
            number: Number of the step in the whole training, from 0.
        """
        self._dense.zero_grad(set_to_none=True)
        self._warm_up(number)

    def step(self, fetched: FetchedRows) -> Tensor | None:
        """Moves everything by the gradients that were collected; a collective.

        Args:
            fetched: Rows of the tables, with gradients.

        Returns:
            Norm of the whole gradient before it was limited; None when there is no limit, or when
            nothing was moved because a gradient overflowed.
        """
        gradients = self._tables.gradients(fetched)
        collectives.sum_gradients(self._parameters)
        dense = [p.grad for p in self._parameters if p.grad is not None]
        if not self.scale.unscale([*dense, *gradients.values()]):
            self._tables.uncount_fetch()
            return None
        norm = None
        if self._settings.clip_norm is not None:
            norm = (_square(dense) + _square_of_rows(fetched.unique, gradients)).sqrt()
            scale = (self._settings.clip_norm / (norm + 1e-12)).clamp(max=1.0)
            for gradient in [*dense, *gradients.values()]:
                gradient.mul_(scale)
        self._tables.update(fetched, gradients)
        self._dense.step()
        return norm

    @torch.no_grad()
    def decay_accumulators(self) -> None:
        """Lets Adagrad forget a part of the past, as the settings say."""
        factor = self._settings.accumulator_decay
        if factor == 1.0:
            return
        self._tables.decay_accumulators(factor)
        for state in self._dense.state.values():
            if "sum" in state:
                state["sum"].mul_(factor)

    def accumulator_norm(self) -> float:
        """Norm of this rank's part of the tables' optimizer state."""
        return float(_square(self._tables.local_state()).sqrt())

    def dense_state(self) -> dict[str, Tensor]:
        """State of the towers' optimizer by flat names, sharing its memory."""
        return {
            f"{number}.{key}": value
            for number, values in self._dense.state_dict()["state"].items()
            for key, value in values.items()
        }

    def state_by_parameter(self) -> dict[str, Tensor]:
        """State of the towers' optimizer by `<parameter>/<name>`, sharing its memory."""
        return {
            f"{name}/{key}": value
            for name, parameter in zip(self._names, self._parameters, strict=True)
            for key, value in self._dense.state.get(parameter, {}).items()
        }

    def materialise(self) -> None:
        """Makes state that the dense optimizer makes at its first step, to be loaded into."""
        if self._dense.state:
            return
        # A gradient of zero moves nothing; the step is not counted.
        for p in self._parameters:
            p.grad = torch.zeros_like(p)
        self._dense.step()
        self._dense.zero_grad(set_to_none=True)
        for state in self._dense.state.values():
            if "step" in state:
                state["step"].zero_()

    def _warm_up(self, number: int) -> None:
        warmup = self._settings.warmup_steps
        factor = min(1.0, (number + 1) / warmup) if warmup else 1.0
        if factor == self._factor:
            return
        self._factor = factor
        self._tables.set_rate(factor)
        for group in self._dense.param_groups:
            group["lr"] = self._settings.learning_rate * factor


def dense_optimizer(
    settings: OptimizerSettings, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of the towers that the settings ask for."""
    rate, eps = settings.learning_rate, settings.eps
    if settings.dense == "sgd":
        return torch.optim.SGD(parameters, lr=rate)
    if settings.dense == "adam":
        return torch.optim.Adam(parameters, lr=rate, eps=eps)
    return torch.optim.Adagrad(parameters, lr=rate, eps=eps)


def _square(tensors: Iterable[Tensor]) -> Tensor:
    parts = [t.double().square().sum() for t in tensors]
    return torch.stack(parts).sum().float() if parts else torch.zeros(())


def _square_of_rows(unique: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Tensor:
    """Squared norm of the rows' gradients, summed over ranks row by row."""
    if collectives.world_size() == 1:
        return _square(gradients.values())
    # Ranks touch the same rows: the norm of a sum is not the sum of norms, so all parts travel.
    sums = []
    for name, gradient in gradients.items():
        rows, places = torch.unique(collectives.gather_rows(unique[name]), return_inverse=True)
        parts = collectives.gather_rows(gradient)
        sums.append(parts.new_zeros(len(rows), parts.shape[1]).index_add_(0, places, parts))
    return _square(sums)
