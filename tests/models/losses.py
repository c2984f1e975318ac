"""Cases for the losses, and what they are compared with: loops over single draws in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from models.candidates import Positives, merge_draws
from models.config import LossSettings, ModelSettings
from models.distinct import Distinct
from models.jagged import Jagged
from models.loss import loss_of

TEMPERATURE = 0.3
_TOWER = {"features": [{"name": "f", "table": "t"}]}


@dataclass
class Case:
    """B users; the first B draws are their own items. Every item of the corpus has a vector."""

    users: Tensor
    corpus: Tensor
    draws: Tensor
    log_q: Tensor
    weight: Tensor
    known: Sequence[set[int]]
    unit_length: bool = False
    settings: LossSettings = field(default_factory=LossSettings)

    def with_settings(self, **changes: object) -> Case:
        return replace(self, settings=LossSettings.model_validate(changes))

    @property
    def alpha(self) -> float:
        return 0.0 if self.settings.logq == "off" else self.settings.logq_alpha


def make_case(
    batch: int = 13, draws: int = 40, corpus: int = 9, dim: int = 6, *, unit_length: bool = False
) -> Case:
    """Random vectors; the small corpus makes repeats certain."""
    generator = torch.Generator().manual_seed(3)
    probability = torch.rand(corpus, generator=generator).double() + 0.1
    item = torch.randint(corpus, (draws,), generator=generator)
    users = torch.randn(batch, dim, generator=generator).double()
    vectors = torch.randn(corpus, dim, generator=generator).double()
    if unit_length:
        users, vectors = F.normalize(users), F.normalize(vectors)
    return Case(
        users,
        vectors,
        item,
        (probability / probability.sum()).log()[item],
        torch.rand(batch, generator=generator).double(),
        [
            {int(item[i]), (i * 5) % corpus, (i * 7 + 2) % corpus} - {int(item[i])}
            for i in range(batch)
        ],
        unit_length,
    )


def of_product(case: Case) -> Tensor:
    """The loss as the product computes it."""
    distinct = Distinct(len(case.corpus), torch.device("cpu"))
    candidates, column = merge_draws(distinct, case.draws, case.log_q * -case.alpha)
    place = {int(item): number for number, item in enumerate(candidates.item)}
    known = [sorted(place[i] for i in items if i in place) for items in case.known]
    positives = Positives(
        column[: len(case.users)],
        (case.log_q * -case.alpha)[: len(case.users)],
        (Jagged.from_lists(known),),
    )
    model = ModelSettings.model_validate(
        {
            "user": _TOWER,
            "item": _TOWER,
            "temperature": TEMPERATURE,
            "similarity": "cosine" if case.unit_length else "dot",
        }
    )
    loss = loss_of(model, case.settings)
    return loss(case.users, case.corpus[candidates.item], candidates, positives, case.weight)


def reference(case: Case) -> Tensor:
    """The same loss, user by user and draw by draw."""
    total = torch.zeros(()).double()
    scale = 1.0 if case.settings.kind == "ccl" else 1 / TEMPERATURE
    for row, user in enumerate(case.users):
        own = int(case.draws[row])
        target = user @ case.corpus[own] * scale
        kept = [
            n
            for n, item in enumerate(case.draws.tolist())
            if item != own and item not in case.known[row]
        ]
        scores = torch.stack([user @ case.corpus[case.draws[n]] * scale for n in kept])
        log_weight = -case.alpha * case.log_q[kept]
        if case.settings.kind == "softmax":
            loss = _softmax(case, row, target, scores + log_weight)
        else:
            negatives = _negative_terms(case.settings, scores)
            mean = (log_weight.softmax(0) * negatives).sum()
            positive = F.softplus(-target) if case.settings.kind == "bce" else 1 - target
            loss = positive + case.settings.negative_weight * mean
        total = total + case.weight[row] * loss
    return total


def _softmax(case: Case, row: int, target: Tensor, others: Tensor) -> Tensor:
    if case.settings.logq == "corrected":
        rest = others.logsumexp(0) - math.log(len(case.draws) - 1)
        uncertain = torch.sigmoid(rest - target).detach()
        return uncertain * (rest - target)
    target = target - case.alpha * case.log_q[row]
    return torch.cat([target[None], others]).logsumexp(0) - target


def _negative_terms(settings: LossSettings, scores: Tensor) -> Tensor:
    if settings.kind == "bce":
        return -torch.sigmoid(-scores).log()
    return (scores - settings.margin).clamp(min=0)
