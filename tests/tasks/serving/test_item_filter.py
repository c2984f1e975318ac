"""Protects the filters of a request: only the wanted items are answered, by the model and by
popularity, and what cannot be told apart is refused."""

from __future__ import annotations

import pytest

from tasks.gate import same_answer
from tasks.serving.bundles import bundle_folder, trained_model
from tasks.serving.by_id import Answer, RecommenderById
from tasks.serving.item_filter import filterable, let_in, parse_where
from tests.tasks.serving.category_days import CategoryDay


@pytest.fixture(scope="module")
def model(category_day: CategoryDay) -> RecommenderById:
    spec = category_day.spec
    return RecommenderById(bundle_folder(spec.lake(), trained_model(spec, "candidate")))


def _check(found: Answer, everything: Answer, let_in: set[str]) -> None:
    """The answer has the items of the whole that are let in, in its order."""
    whole = zip(everything.items, everything.scores, strict=True)
    kept = [(item, score) for item, score in whole if item in let_in]
    items, scores = [item for item, _ in kept], [score for _, score in kept]
    assert same_answer(found.items, found.scores, items, scores)
    assert set(found.items) == set(items)


@pytest.mark.parametrize("user", ["u01", "nobody"])
def test_candidates_are_ordered_as_in_the_whole(model: RecommenderById, user: str) -> None:
    everything = model.answer(user, 1000, exclude_seen=False)
    chosen = ["i07", "no such item", "i03", "i11", "neither"]
    found = model.answer(user, 10, exclude_seen=False, candidates=chosen)
    _check(found, everything, set(chosen))
    assert len(found.items) == 3
    assert found.unknown_candidates == 2
    assert found.origin == everything.origin


def test_seen_items_stay_out_of_the_candidates(model: RecommenderById) -> None:
    users = model.recommender.users
    assert users is not None
    row = model.row_of("u01")
    taken = [model.item_ids[i].as_py() for i in users["seen"][row].as_py()]
    assert model.answer("u01", 10, candidates=taken).items == []
    assert set(model.answer("u01", 100, exclude_seen=False, candidates=taken).items) == set(taken)


def test_no_candidates_is_no_item(model: RecommenderById) -> None:
    assert model.answer("u01", 5, candidates=[]).items == []
    assert model.answer("nobody", 5, candidates=["?"]).items == []


@pytest.mark.parametrize("user", ["u02", None])
def test_a_value_of_an_attribute(
    model: RecommenderById, category_day: CategoryDay, user: str | None
) -> None:
    everything = model.answer(user, 1000)
    for wanted in (["red"], ["red", "blue"]):
        found = model.answer(user, 1000, where={"colour": wanted})
        coloured = {item for item, colour in category_day.colour.items() if colour in wanted}
        _check(found, everything, coloured)
        assert found.items
    both = model.answer(user, 1000, where={"colour": "red"}, candidates=found.items[:4])
    reds = {i for i in found.items[:4] if category_day.colour[str(i)] == "red"}
    assert set(both.items) == reds


def test_what_cannot_be_told_apart_is_refused(model: RecommenderById) -> None:
    assert filterable(model.recommender.bundle) == {"colour": "colour"}
    with pytest.raises(ValueError, match="no attribute 'size' that the model reads: colour"):
        let_in(model, None, {"size": "XL"})
    with pytest.raises(ValueError, match="'mauve' of 'colour' has no row of its own"):
        let_in(model, None, {"colour": "mauve"})


def test_conditions_as_text() -> None:
    assert parse_where(["a=1", "b=x=y", "a=2"]) == {"a": ["1", "2"], "b": ["x=y"]}
    for wrong in ("a", "=1", ""):
        with pytest.raises(ValueError, match="attribute=value"):
            parse_where([wrong])
