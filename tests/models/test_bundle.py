"""Protects the servable model: it recommends what the trained weights say, and a folder that is
cut short, damaged or mixed from two models is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from models.bundle import BUNDLE, Bundle, Kind, Recommender, Vocabulary, write_bundle
from models.corpus import Corpus
from models.errors import BundleError
from models.towers import AttentionPool
from models.trainer import train
from models.weights import load_tables, load_towers
from tests.models.sinks import Recorder
from tests.models.worlds import World, make_job, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("bundle"), num_users=60, num_items=40, hashes=2)


@pytest.fixture(scope="module")
def trained(world: World) -> Path:
    """Weights of the traditional baseline, which needs no process group."""
    job = make_job(world, world.folder / "t", kind="traditional")
    train(job, Recorder())
    return Path(job.output_dir)


def _bundle(world: World, folder: Path, kind: Kind, weights: Path | None) -> Bundle:
    vocabulary = folder.parent / f"{folder.name}-vocabulary.parquet"
    pq.write_table(pa.table({"id": ["a"], "row": pa.array([2], pa.int32())}), vocabulary)
    return write_bundle(
        folder,
        kind=kind,
        weights_dir=weights,
        corpus_file=world.corpus_file,
        users_file=world.users_file,
        vocabularies={"item": Vocabulary(file=str(vocabulary), policy={"tail_buckets": 1})},
        info={"day": "2026-01-01"},
    )


def test_popularity_recommends_the_most_interacted_unseen_items(
    world: World, tmp_path: Path
) -> None:
    _bundle(world, tmp_path / "b", "popularity", None)
    recommender = Recommender.load(tmp_path / "b")
    table = pq.read_table(world.test_file)
    users = recommender.inputs(table)
    indices, scores = recommender.top_k(users, 5)
    counts = pq.read_table(world.corpus_file)["train_count"].to_pylist()
    for row, seen in enumerate(table["seen"].to_pylist()):
        best = sorted(set(range(len(counts))) - set(seen), key=lambda i: (-counts[i], i))[:5]
        assert indices[row].tolist() == best
        assert scores[row].tolist() == [counts[i] for i in best]
    everything, _ = recommender.top_k(users, 5, exclude_seen=False)
    assert everything.tolist() == [[0, 1, 2, 3, 4]] * len(users)
    assert recommender.bundle.parameters() == 0


def test_traditional_scores_by_hand(world: World, trained: Path, tmp_path: Path) -> None:
    bundle = _bundle(world, tmp_path / "b", "traditional", trained)
    recommender = Recommender.load(tmp_path / "b")
    assert recommender.users is not None
    users = recommender.inputs(recommender.users)
    assert bundle.trained is not None
    towers = load_towers(tmp_path / "b", bundle.trained)
    tables = load_tables(tmp_path / "b", bundle.trained)
    assert tables["full_users"].shape[0] == world.num_users + 1
    row = 7
    history = recommender.users["history"].to_pylist()[row][-8:]
    stacked = tables["full_items"][[i + 1 for i in history]]
    pool = towers.user.pools["recent"]
    assert isinstance(pool, AttentionPool)
    assert pool.recency is not None
    scores = stacked @ pool.query + pool.recency[: len(history)].flip(0)
    inputs = torch.cat([tables["full_users"][row + 1], scores.softmax(0) @ stacked])
    vector = torch.nn.functional.normalize(towers.user.mlp(inputs), dim=0)
    torch.testing.assert_close(recommender.user_vectors(users)[row], vector)
    corpus = Corpus.from_parquet(world.corpus_file, bundle.trained.model, bundle.trained.table_rows)
    item = 3
    tags = corpus.features["tags"].slice(item, item + 1).values
    mean = tables["tag"][tags].sum(0) / (len(tags) / 2)  # two codes an element
    inputs = torch.cat([tables["full_items"][item + 1], mean])
    vector = torch.nn.functional.normalize(towers.item.mlp(inputs), dim=0)
    torch.testing.assert_close(recommender.item_vectors[item], vector)


def test_unknown_users_are_recommended_to(world: World, trained: Path, tmp_path: Path) -> None:
    _bundle(world, tmp_path / "b", "traditional", trained)
    recommender = Recommender.load(tmp_path / "b")
    empty = pa.array([[]], pa.list_(pa.int32()))
    table = pa.table({"user": pa.array([-1], pa.int64()), "history": empty, "user_id_code": empty})
    indices, scores = recommender.top_k(recommender.inputs(table), 3)
    assert len(set(indices[0].tolist())) == 3
    assert bool(scores.isfinite().all())


def test_users_of_another_model_are_refused(world: World, trained: Path, tmp_path: Path) -> None:
    _bundle(world, tmp_path / "b", "traditional", trained)
    recommender = Recommender.load(tmp_path / "b")
    table = pq.read_table(world.users_file)
    for column, value in (("history", [[40]]), ("seen", [[-1]]), ("user", [60])):
        kind = table.schema.field(column).type
        place = table.column_names.index(column)
        wrong = table.slice(0, 1).set_column(place, column, pa.array(value, kind))
        with pytest.raises(ValueError, match=f"'{column}'"):
            recommender.inputs(wrong)
    with pytest.raises(ValueError, match="no column 'history'"):
        recommender.inputs(table.drop_columns(["history"]))


def test_every_damage_is_refused(world: World, trained: Path, tmp_path: Path) -> None:
    good = tmp_path / "good"
    bundle = _bundle(world, good, "traditional", trained)
    assert "vocabulary/item.parquet" in bundle.parts
    assert "users.parquet" in bundle.parts
    for number, name in enumerate([*bundle.parts, BUNDLE]):
        for damage in ("missing", "truncated", "changed"):
            if name == BUNDLE and damage == "changed":
                continue
            bad = tmp_path / f"{number}-{damage}"
            shutil.copytree(good, bad)
            content = (bad / name).read_bytes()
            if damage == "missing":
                (bad / name).unlink()
            elif damage == "truncated":
                (bad / name).write_bytes(content[:-1])
            else:
                (bad / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(BundleError, match=name.rsplit("/", 1)[-1]):
                Recommender.load(bad)
    assert Recommender.load(good).num_items == world.num_items


def test_parts_of_another_model_are_refused(world: World, trained: Path, tmp_path: Path) -> None:
    _bundle(world, tmp_path / "a", "traditional", trained)
    other = make_job(world, tmp_path / "o", kind="traditional", seed=7)
    train(other, Recorder())
    _bundle(world, tmp_path / "b", "traditional", Path(other.output_dir))
    shutil.copy(tmp_path / "b/towers.safetensors", tmp_path / "a/towers.safetensors")
    with pytest.raises(BundleError, match="another model"):
        Recommender.load(tmp_path / "a")


def test_a_bundle_is_not_made_from_unfinished_or_wrong_weights(
    world: World, trained: Path, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match="not a two_tower model"):
        _bundle(world, tmp_path / "a", "two_tower", trained)
    unfinished = tmp_path / "weights"
    shutil.copytree(trained, unfinished)
    (unfinished / "weights.json").unlink()
    with pytest.raises(BundleError, match="no finished weights"):
        _bundle(world, tmp_path / "b", "traditional", unfinished)
    with pytest.raises(BundleError, match="needs trained weights"):
        _bundle(world, tmp_path / "c", "traditional", None)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/old").touch()
    with pytest.raises(BundleError, match="not empty"):
        _bundle(world, tmp_path / "d", "traditional", trained)
    assert not any((tmp_path / name / BUNDLE).exists() for name in "abcd")


def test_corpus_of_another_run_is_refused(world: World, tmp_path: Path) -> None:
    job = make_job(world, tmp_path, kind="traditional")
    train(job, Recorder())
    table = pq.read_table(world.corpus_file)
    codes = pa.array([[99, 0]] * len(table), pa.list_(pa.int32()))
    place = table.column_names.index("tags")
    pq.write_table(table.set_column(place, "tags", codes), tmp_path / "other.parquet")
    with pytest.raises(BundleError, match="'tags' has code 99"):
        write_bundle(
            tmp_path / "b",
            kind="traditional",
            weights_dir=job.output_dir,
            corpus_file=str(tmp_path / "other.parquet"),
        )


def test_facts_survive(world: World, trained: Path, tmp_path: Path) -> None:
    written = _bundle(world, tmp_path / "b", "traditional", trained)
    read = Recommender.load(tmp_path / "b").bundle
    assert read == written
    assert read.info == {"day": "2026-01-01"}
    assert read.policies == {"item": {"tail_buckets": 1}}
    # full users 61 × 16, full items 41 × 16, tags 8 × 8, and the two towers.
    towers = (32 * 32 + 32 + 32 * 16 + 16) + (24 * 32 + 32 + 32 * 16 + 16) + 16 + 8
    assert read.parameters() == 61 * 16 + 41 * 16 + 8 * 8 + towers
    assert json.loads((tmp_path / "b" / BUNDLE).read_text())["kind"] == "traditional"
