"""The prior of the item popularity: the score is the model's plus the temperature times the log of
the recent share, and a model without a prior is left alone."""

import math

import pytest
import torch

from models.config import ModelSettings, PriorSettings
from models.corpus import Corpus
from models.prior import with_constant, with_prior


def model_of(prior):
    tower = {"features": [{"name": "f", "table": "t"}]}
    return ModelSettings.model_validate(
        {"user": tower, "item": tower, "dim": 4, "temperature": 0.2, "prior": prior}
    )


def counted(counts):
    return Corpus(torch.tensor(counts), {}, torch.tensor(counts))


def test_scores_are_those_of_bayes_rule():
    users, items = torch.randn(3, 4), torch.randn(5, 4)
    recent, whole = [7.0, 0.0, 2.5, 1.0, 0.25], [9, 4, 3, 1, 40]
    corpus = Corpus(torch.tensor(whole), {}, torch.tensor(recent))
    model = model_of({"strength": 0.5, "trend": 2.0, "half_life_days": 3})
    scores = with_constant(users, model) @ with_prior(items, corpus, model).T
    now = [(c + 1) / (sum(recent) + 5) for c in recent]
    ever = [(c + 1) / (sum(whole) + 5) for c in whole]
    for user in range(3):
        # Probabilities without the prior, times the shares to their powers.
        plain = (users[user] @ items.T / 0.2).softmax(0)
        wanted = plain * torch.tensor(
            [share**0.5 * (share / before) ** 2 for share, before in zip(now, ever, strict=True)]
        )
        found = (scores[user] / 0.2).softmax(0)
        torch.testing.assert_close(found, wanted / wanted.sum())


def test_an_item_twice_as_popular_wins_between_equals():
    model = model_of({"half_life_days": None})
    items = with_prior(torch.ones(2, 4), counted([3, 1]), model)
    scores = with_constant(torch.ones(1, 4), model) @ items.T
    assert float(scores[0, 0] - scores[0, 1]) == pytest.approx(0.2 * math.log(2), rel=1e-5)


def test_without_a_prior_nothing_changes():
    vectors = torch.randn(3, 4)
    model = model_of(None)
    assert with_prior(vectors, counted([1, 1, 1]), model) is vectors
    assert with_constant(vectors, model) is vectors
    assert PriorSettings().half_life_days is None
