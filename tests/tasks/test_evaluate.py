"""Protects: every model is measured on the same users by the code that serves, and the champion
by raw IDs, so that another corpus and other vocabularies change nothing but what it knows."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

from models.bundle import Recommender
from tasks.errors import ConfigError, DataError
from tasks.evaluation.foreign_model import foreign_top_k
from tasks.evaluation.per_user import aggregates, rows_of
from tasks.evaluation.stored import SAMPLES, read_per_user
from tasks.gate import same_answer
from tasks.run_spec import RunSpec
from tasks.serving.bundles import bundle_folder, trained_model
from tasks.serving.by_id import RecommenderById
from tasks.serving.fallback import top_k
from tests.tasks.small_runs import TwoDays, rerun


def _test_users(spec: RunSpec):
    examples = spec.output("examples", "examples")
    test = spec.lake().read_table(examples.file("test/part-0.parquet"))
    return test.filter(pc.greater(pc.list_value_length(test.column("targets")), 0))


def _item_ids(spec: RunSpec):
    examples = spec.output("examples", "examples")
    items = spec.lake().read_table(examples.file("items/part-0.parquet"))
    return items.column("item_id").combine_chunks()


def _folder(spec: RunSpec, role: str = "candidate"):
    return bundle_folder(spec.lake(), trained_model(spec, role))


def test_recall_equals_a_computation_by_hand(two_days: TwoDays) -> None:
    """Scores every user against every item in float64, by the definition of recall."""
    spec = two_days.second
    model = Recommender.load(_folder(spec))
    test = _test_users(spec)
    inputs = model.inputs(test)
    scores = (model.user_vectors(inputs).double() @ model.item_vectors.double().T).numpy()
    counts = model.corpus.column("train_count").to_numpy()
    recalls = []
    for row, user in enumerate(test.to_pylist()):
        known = user["user"] >= 0 or user["history"] or any(user["country"] + user["interests"])
        ranked = scores[row] if known else counts.astype(float)
        ranked = ranked.copy()
        ranked[user["seen"]] = -np.inf
        best = np.argsort(-ranked, kind="stable")[:5]
        recalls.append(len(set(best.tolist()) & set(user["targets"])) / len(user["targets"]))
    facts = spec.require("evaluate").facts
    assert facts["users"] == len(recalls)
    assert facts["candidate"] == pytest.approx(np.mean(recalls), abs=1e-5)


def test_popularity_recommends_what_was_taken_most(two_days: TwoDays) -> None:
    spec = two_days.second
    test = _test_users(spec)
    recalls = []
    for user in test.to_pylist():
        # The corpus is ordered by train count, so the first unseen indices are the top.
        top = [n for n in range(test.num_rows) if n not in set(user["seen"])][:5]
        recalls.append(len(set(top) & set(user["targets"])) / len(user["targets"]))
    expected = pytest.approx(np.mean(recalls), abs=1e-5)
    assert spec.require("evaluate").facts["popularity"] == expected


def test_all_models_have_the_same_users_in_the_same_order(two_days: TwoDays) -> None:
    spec = two_days.second
    rows = read_per_user(spec.lake(), spec.output("evaluate", "evaluation"))
    users = {
        name: rows_of(rows, name).column("user_id").to_pylist()
        for name in ("candidate", "popularity", "champion")
    }
    assert users["candidate"] == users["popularity"] == users["champion"]
    assert users["candidate"] == _test_users(spec).column("user_id").to_pylist()


def test_the_means_follow_from_the_stored_rows(two_days: TwoDays) -> None:
    spec = two_days.second
    evaluation = spec.output("evaluate", "evaluation")
    rows = read_per_user(spec.lake(), evaluation)
    for name, facts in evaluation.manifest.meta["models"].items():
        means = aggregates(rows_of(rows, name))
        stored = {k: v for k, v in facts["metrics"].items() if not k.startswith("coverage")}
        assert stored == pytest.approx(means)
        assert facts["curve"]["5"] == pytest.approx(means["recall_at_5"])


def test_a_model_measured_by_raw_ids_answers_as_by_codes(two_days: TwoDays) -> None:
    """This run's own model through the champion's path: the same answers to the last bit."""
    spec = two_days.second
    test = _test_users(spec)
    model = RecommenderById(_folder(spec))
    indices, scores = foreign_top_k(spec, model, test, _item_ids(spec), 5)
    direct = Recommender.load(_folder(spec))
    wanted, wanted_scores, _ = top_k(direct, direct.inputs(test), 5)
    assert torch.equal(indices, wanted)
    assert torch.equal(scores, wanted_scores)


def test_the_champion_recommends_nothing_that_it_does_not_know(two_days: TwoDays) -> None:
    spec = two_days.second
    champion = RecommenderById(_folder(two_days.first))
    item_ids = _item_ids(spec)
    known = set(champion.item_ids.to_pylist())
    new = set(item_ids.to_pylist()) - known
    assert new, "the second day must bring new items, or this tests nothing"
    indices, _ = foreign_top_k(spec, champion, _test_users(spec), item_ids, 5)
    inside = indices[(indices >= 0) & (indices < len(item_ids))]
    shown = {item_ids[int(n)].as_py() for n in inside}
    assert shown <= known
    assert not shown & new


def test_the_champion_does_not_recommend_what_today_counts_as_seen(two_days: TwoDays) -> None:
    spec = two_days.second
    champion = RecommenderById(_folder(two_days.first))
    test = _test_users(spec)
    indices, _ = foreign_top_k(spec, champion, test, _item_ids(spec), 5)
    for row, seen in enumerate(test.column("seen").to_pylist()):
        assert not set(indices[row].tolist()) & set(seen)


def test_samples_hold_what_was_recommended(two_days: TwoDays) -> None:
    spec = two_days.second
    evaluation = spec.output("evaluate", "evaluation")
    samples = rows_of(spec.lake().read_table(evaluation.file(SAMPLES)), "candidate").to_pylist()
    model = RecommenderById(_folder(spec))
    assert len(samples) == min(64, len(_test_users(spec)))
    for sample in samples[:10]:
        answer = model.answer(sample["user_id"], 5)
        # Items of one bucket tie; another shape of the product may order them otherwise.
        assert same_answer(answer.items, answer.scores, sample["items"], sample["scores"])


def test_measuring_again_does_no_work(two_days: TwoDays) -> None:
    spec = two_days.second
    before = spec.output("evaluate", "evaluation")
    again = rerun(spec, "evaluate")
    assert again.outputs["evaluation"] == before.path
    assert spec.output("evaluate", "evaluation").manifest == before.manifest


def test_a_deciding_metric_that_is_not_evaluated_is_refused(two_days: TwoDays) -> None:
    gate = two_days.config.gate.model_copy(update={"metric": "recall_at_20"})
    config = two_days.config.model_copy(update={"gate": gate})
    spec = two_days.second.model_copy(update={"config": config})
    with pytest.raises(ConfigError, match="'recall_at_20' is not evaluated"):
        rerun(spec, "evaluate")


def test_a_day_without_anything_new_is_refused(
    two_days: TwoDays, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tasks.evaluate

    spec = two_days.second
    monkeypatch.setattr(tasks.evaluate, "_FORMAT", "another, so that it is measured again")
    read = type(spec.lake()).read_table

    def without_targets(self, path, columns=None):
        table = read(self, path, columns)
        return table.slice(0, 0) if path.endswith("test/part-0.parquet") else table

    monkeypatch.setattr(type(spec.lake()), "read_table", without_targets)
    with pytest.raises(DataError, match="no user of the test days"):
        rerun(spec, "evaluate")
