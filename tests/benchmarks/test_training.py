"""The benchmarks of the training run at a small size, drive the product's own training, and end
with one JSON object that has every key."""

import json

import pytest

from benchmarks import accumulators, input, memory, training
from benchmarks.training_world import WorldShape, make_job, make_world
from models.corpus import Corpus
from models.reader import ExampleReader


def test_world_has_the_shape_that_was_asked_for(tmp_path):
    shape = WorldShape(rows=200, steps=3, batch=64)
    job = make_job(make_world(tmp_path, shape), shape, 3)
    corpus = Corpus.from_parquet(job.corpus_file, job.model, job.table_rows)
    assert len(corpus) == 200
    assert sorted(corpus.train_count.tolist(), reverse=True) == corpus.train_count.tolist()
    macros = list(ExampleReader(job, len(corpus)).read())
    assert [len(m.micro) for m in macros] == [1] * 4, "files hold two batches each"
    assert {m.examples for m in macros} == {64}
    hottest = sum((m.micro[0].items == 0).sum().item() for m in macros)
    assert hottest > 256 / 20, "items are long-tailed"


def test_contenders_that_do_not_fit_together_run_apart():
    gib = 2**30
    assert training.groups_of(100_000, [], 16 * gib) == [list(training.RIVALS)]
    groups = training.groups_of(5_000_000, ["fused_adam"], 16 * gib)
    assert [name for group in groups for name in group] == [
        name for name in training.RIVALS if name != "fused_adam"
    ]
    assert len(groups) > 1
    for group in groups:
        rows = sum(training.COPIES.get(name, 1) for name in ["tailtower", *group]) * 5_000_000
        assert rows * training.BYTES_PER_ROW <= 16 * gib or len(group) == 1


def test_keys_are_taken_from_their_sizes():
    def size(own, **ratios):
        return {
            "tailtower": {"examples_per_second": own},
            **{
                name: {"ratio": ratio, "examples_per_second": own / ratio}
                for name, ratio in ratios.items()
            },
        }

    found = training.keys(
        {
            100_000: size(110, traditional=2.0, bare_fbgemm=5.0),
            1_000_000: size(105, traditional=12.5, sparse=1.7, bare_fbgemm=1.1, products=0.8),
            5_000_000: size(100, traditional=40.0, products=0.4),
        }
    )
    assert found == {
        "ratio_vs_traditional_1m": 12.5,
        "ratio_vs_sparse_1m": 1.7,
        "ratio_vs_traditional_5m": 40.0,
        "ratio_vs_bare_fbgemm": 1.1,
        "roofline": 0.8,
        "products_growth": 0.525,  # 105 / 0.8 examples a second, then 100 / 0.4
    }


def test_decay_keeps_learning_alive(capsys):
    accumulators.main(["--days", "8"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["closed_with_decay"] > 1.5 * report["closed_without_decay"]
    assert report["norm_growth_without_decay"] > 1.5 * report["norm_growth_with_decay"]


@pytest.fixture
def run(tmp_path, capsys):
    def run(benchmark, *arguments):
        benchmark.main([*arguments, "--cache", str(tmp_path), "--runs", "1", "--steps", "2"])
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_small_race_ends_with_all_keys(run):
    report = run(training, "--rows", "1000", "3000", "--batch", "128")
    assert set(report["rows"]) == {"1000", "3000"}
    assert set(report["rows"]["1000"]) == {"tailtower", *training.RIVALS}
    for key in ("ratio_vs_bare_fbgemm", "roofline", "rows_growth"):
        assert report[key] > 0


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_far_store_is_waited_for(run):
    report = run(input, "--rows", "1000", "--steps-per-file", "1", "--latency", "0", "20")
    assert report["async_gain"] > 0
    waits = report["latency_ms"]["20"]
    assert waits["in_turn"]["input_wait_share"] > report["input_wait_share"]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_memory_is_saved(run):
    sizes = ["--rows", "1000", "--batch", "4096", "--users", "300", "--seeds", "1"]
    report = run(memory, *sizes)
    assert report["fp16_bytes_ratio"] == 0.5
    assert 0 < report["activation_ratio"] < 0.7
    assert report["fp16_recall_ratio"] > 0
