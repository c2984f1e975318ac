"""Protects: raw IDs of any type find their rows, and all others are encoded as in training."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

from models import popularity, retrieval
from models.jagged import Jagged
from tasks.serving.bundles import bundle_folder, trained_model
from tasks.serving.by_id import RecommenderById
from tasks.serving.fallback import most_popular
from tasks.serving.id_lookup import IdLookup
from tests.tasks.small_runs import TwoDays


@pytest.fixture(scope="module")
def model(two_days: TwoDays) -> RecommenderById:
    spec = two_days.second
    folder = bundle_folder(spec.lake(), trained_model(spec, "candidate"))
    return RecommenderById(folder)


def test_every_known_user_is_encoded_as_in_the_examples(model: RecommenderById) -> None:
    users = model.recommender.users
    assert users is not None
    table = model.encode(model.user_ids)
    for name in table.column_names:
        assert table.column(name).to_pylist() == users.column(name).to_pylist(), name


def test_an_unknown_user_gets_the_bucket_of_its_hash(
    model: RecommenderById, two_days: TwoDays
) -> None:
    import xxhash

    vocabulary = two_days.config.tables["user"].vocabulary
    codes = model.encode(pa.array(["nobody"])).column("uid").to_pylist()
    bucket = xxhash.xxh3_64_intdigest(b"nobody", vocabulary.seed) % vocabulary.tail_buckets + 1
    assert codes == [[bucket]]


def test_nobody_in_particular_has_the_padding_row(model: RecommenderById) -> None:
    table = model.encode(pa.array([None], pa.string()))
    assert table.column("uid").to_pylist() == [[0]]
    assert table.column("user").to_pylist() == [-1]
    assert table.column("history").to_pylist() == [[]]


def test_fewer_items_than_wanted_is_no_error(model: RecommenderById) -> None:
    answer = model.answer("u01", 1000)
    seen = set(model.recommender.users.column("seen")[model.row_of("u01")].as_py())  # type: ignore[union-attr]
    assert len(answer.items) == len(model.item_ids) - len(seen)
    assert len(set(answer.items)) == len(answer.items)


def test_batches_and_single_users_agree(model: RecommenderById) -> None:
    from tasks.serving.fallback import top_k

    table = model.encode(model.user_ids.slice(0, 8))
    indices, _, _ = top_k(model.recommender, model.recommender.inputs(table), 1)
    for row, user in enumerate(model.user_ids.slice(0, 8).to_pylist()):
        assert model.answer(user, 1).items == [model.item_ids[int(indices[row, 0])].as_py()]


@pytest.mark.parametrize(
    ("asked", "known", "expected"),
    [
        (pa.array(["7", "x", "8"]), pa.array([8, 7]), [1, -1, 0]),  # typed by hand, integer lake
        (pa.array([7, 9]), pa.array(["7"]), [0, -1]),
        (pa.array([None, "a"]), pa.array(["a"]), [-1, 0]),
        (pa.array([None, None]), pa.array(["a"]), [-1, -1]),
        (pa.array(["a"]), pa.array([], pa.string()), [-1]),
        (pa.array([2**62 + 1]), pa.array([2**62, 2**62 + 1]), [1]),
    ],
)
def test_positions(asked: pa.Array, known: pa.Array, expected: list[int]) -> None:
    assert IdLookup(known).positions(asked).tolist() == expected


def test_most_popular_is_the_first_unseen_of_the_corpus() -> None:
    counts = torch.tensor([9, 9, 5, 1, 0])
    seen = Jagged.from_lists([[0, 2], [], [0, 1, 2, 3, 4], [4]])
    indices, scores = most_popular(counts, 4, 3, seen)
    assert indices.tolist() == [[1, 3, 4], [0, 1, 2], [-1, -1, -1], [0, 1, 2]]
    assert scores[0].tolist() == [9.0, 1.0, 0.0]
    assert scores[2].tolist() == [float("-inf")] * 3
    everything, _ = most_popular(counts, 1, 10, None)
    assert everything.tolist() == [[0, 1, 2, 3, 4, -1, -1, -1, -1, -1]]


def test_most_popular_agrees_with_retrieval() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 30, (200,), generator=generator).sort(descending=True).values
    seen = Jagged.from_lists(
        [torch.randperm(200, generator=generator)[: n % 60].tolist() for n in range(90)]
    )
    found = most_popular(counts, 90, 7, seen)
    wanted = retrieval.top_k(popularity.user_vectors(90), popularity.item_vectors(counts), 7, seen)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])
