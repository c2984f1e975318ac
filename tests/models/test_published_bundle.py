"""Protects the published bundle: it answers as the trained one within what it states, states what
an independent measurement finds, refuses to lose more than allowed, and refuses mixed parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from models.bundle import BUNDLE, INDEX, Recommender
from models.errors import BundleError, QualityError
from models.published_bundle import publish_bundle, share_found
from models.serving_settings import Precision, ServingSettings
from tests.models.served_worlds import make_trained

USERS, ITEMS = 64, 600


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_trained(tmp_path_factory.mktemp("trained"), users=USERS, items=ITEMS, seed=1)


def _settings(
    tables: Precision = "fp32", vectors: Precision = "fp32", **more: object
) -> ServingSettings:
    return ServingSettings.model_validate({"tables": tables, "item_vectors": vectors, **more})


def test_full_precision_answers_as_the_trained_bundle(trained: Path, tmp_path: Path) -> None:
    bundle = publish_bundle(trained, tmp_path / "b", _settings())
    assert bundle.served is not None
    assert (bundle.served.overlap, bundle.served.recall) == (1.0, None)
    assert bundle.served.user_vector_error == 0
    assert bundle.served.item_vector_error == 0
    full, quick = Recommender.load(trained), Recommender.load(tmp_path / "b")
    assert full.users is not None
    users = full.inputs(full.users)
    for a, b in zip(full.top_k(users, 20), quick.top_k(users, 20), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("precision", "most", "least"), [("fp16", 2e-3, 0.98), ("int8", 5e-2, 0.85), ("int4", 0.7, 0.3)]
)
def test_what_is_stated_is_what_is_lost(
    trained: Path, tmp_path: Path, precision: Precision, most: float, least: float
) -> None:
    settings = _settings(precision, precision, min_overlap=0.0, sample_users=USERS)
    bundle = publish_bundle(trained, tmp_path / "b", settings)
    stated = bundle.served
    assert stated is not None
    full, quick = Recommender.load(trained), Recommender.load(tmp_path / "b")
    assert full.users is not None
    users = full.inputs(full.users)
    exact, near = (one.user_vectors(users).double() for one in (full, quick))
    distance = float((exact - near).norm(dim=1).max())
    assert stated.user_vector_error == pytest.approx(distance, rel=1e-4)
    assert 0 < distance < most
    k = stated.k
    assert (k, stated.users) == (60, USERS)
    scores = [v @ one.item_vectors.double().T for v, one in ((exact, full), (near, quick))]
    # Items that share all rows have one vector: the first ones count.
    best = [s.sort(dim=1, descending=True, stable=True).indices[:, :k].tolist() for s in scores]
    overlap = np.mean([len({*a} & {*b}) / k for a, b in zip(*best, strict=True)])
    assert stated.overlap == pytest.approx(overlap, abs=2e-3)
    assert least < stated.overlap <= 1


def test_too_great_a_loss_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(QualityError, match="of the best items by full precision are left"):
        publish_bundle(trained, tmp_path / "b", _settings("int4", "int4", min_overlap=0.999))
    assert not (tmp_path / "b" / BUNDLE).exists()


def test_a_popularity_model_is_not_published(trained: Path, tmp_path: Path) -> None:
    from models.bundle import write_bundle

    write_bundle(
        tmp_path / "p",
        kind="popularity",
        weights_dir=None,
        corpus_file=str(trained / "corpus.parquet"),
    )
    with pytest.raises(BundleError, match="no trained model with users"):
        publish_bundle(tmp_path / "p", tmp_path / "b", _settings())


def test_every_damage_is_refused(trained: Path, tmp_path: Path) -> None:
    bundle = publish_bundle(trained, tmp_path / "good", _settings("int8", "int8", min_overlap=0.0))
    assert "vocabulary/item.parquet" in bundle.parts
    for number, name in enumerate([*bundle.parts, BUNDLE]):
        for damage in ("missing", "truncated", "changed"):
            if name == BUNDLE and damage == "changed":
                continue
            bad = tmp_path / f"{number}-{damage}"
            shutil.copytree(tmp_path / "good", bad)
            content = (bad / name).read_bytes()
            (bad / name).unlink()
            if damage == "truncated":
                (bad / name).write_bytes(content[:-1])
            elif damage == "changed":
                (bad / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(BundleError, match=name.rsplit("/", 1)[-1]):
                Recommender.load(bad)


def test_a_mutated_vocabulary_is_refused(trained: Path, tmp_path: Path) -> None:
    publish_bundle(trained, tmp_path / "b", _settings())
    path = tmp_path / "b/vocabulary/item.parquet"
    table = pq.read_table(path)
    swapped = pa.array(table["row"].to_numpy()[::-1].copy(), table["row"].type)
    path.unlink()
    pq.write_table(table.set_column(table.column_names.index("row"), "row", swapped), path)
    with pytest.raises(BundleError, match=r"vocabulary/item\.parquet"):
        Recommender.load(tmp_path / "b")


def test_parts_of_two_versions_are_refused(trained: Path, tmp_path: Path) -> None:
    other = make_trained(tmp_path / "other", users=USERS, items=ITEMS, seed=2)
    publish_bundle(trained, tmp_path / "a", _settings("int8", min_overlap=0.0))
    publish_bundle(other, tmp_path / "b", _settings("int8", min_overlap=0.0))
    for name in ("tables/item.safetensors", "item_vectors.safetensors", "towers.safetensors"):
        mixed = tmp_path / name.replace("/", "-")
        shutil.copytree(tmp_path / "a", mixed)
        (mixed / name).unlink()
        shutil.copy(tmp_path / "b" / name, mixed / name)
        with pytest.raises(BundleError, match="belongs to another model"):
            Recommender.load(mixed)


def test_publishing_leaves_the_trained_bundle_as_it_was(trained: Path, tmp_path: Path) -> None:
    publish_bundle(trained, tmp_path / "b", _settings("int8", "fp16", min_overlap=0.0))
    assert Recommender.load(trained).bundle.served is None


def test_the_index_is_chosen_by_size_and_its_recall_is_stated(
    trained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    small = publish_bundle(trained, tmp_path / "a", _settings(index_from=ITEMS + 1))
    assert INDEX not in small.parts
    goal = 0.9
    bundle = publish_bundle(
        trained, tmp_path / "b", _settings(index_from=ITEMS, min_recall=goal, sample_users=USERS)
    )
    stated = bundle.served
    assert stated is not None
    assert stated.probes is not None
    assert stated.recall is not None
    assert INDEX in bundle.parts
    quick = Recommender.load(tmp_path / "b")
    assert quick.users is not None
    others = quick.inputs(quick.users.take(list(range(1, USERS, 2))))
    found, _ = quick.top_k(others, stated.k, False)
    wanted, _ = quick.top_k(others, stated.k, False, exact=True)
    assert stated.recall == pytest.approx(share_found(wanted, found))
    assert stated.recall >= goal
    truncated = tmp_path / "b" / INDEX
    shorter = truncated.read_bytes()[:-100]
    truncated.unlink()  # it is mapped, and to cut a mapped file short kills the process
    truncated.write_bytes(shorter)
    for verify in (True, False):
        with pytest.raises(BundleError, match=r"items\.faiss .* truncated"):
            Recommender.load(tmp_path / "b", verify=verify)


def test_an_index_that_finds_too_little_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr("models.search_index.SearchIndex.lists", 1)  # no more may be looked into
    settings = _settings(index="approximate", min_recall=0.999)
    with pytest.raises(QualityError, match="are found by the index"):
        publish_bundle(trained, tmp_path / "b", settings)
    assert not (tmp_path / "b" / BUNDLE).exists()


def test_share_found_by_hand() -> None:
    wanted = torch.tensor([[1, 2, 3], [4, 5, -1]])
    found = torch.tensor([[3, 9, 1], [4, -1, -1]])
    assert share_found(wanted, found) == pytest.approx(3 / 5)
