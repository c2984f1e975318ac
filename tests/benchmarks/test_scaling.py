"""Protects the benchmarks of several ranks: equal work, whose time counts, and all keys."""

from __future__ import annotations

import argparse
import json
import os
import subprocess

import pytest

from benchmarks import plan, scaling
from models.storage import parquet_rows
from tasks.errors import ConfigError


class _Process:
    """Answers as a rank does."""

    def __init__(self, seconds, cpu, examples):
        self.asked = []
        self._answer = {"seconds": seconds, "cpu": cpu, "examples": examples, "parts": {"a": 1.0}}

    def ask(self, job):
        self.asked.append(job)

    def answer(self):
        assert self.asked, "an answer before the question"
        return self._answer


def _group(name, *processes, together):
    group = scaling.Group(name, processes, together)
    group.run(counted=True)
    return group


def test_ranks_wait_for_the_slowest_and_controls_for_nobody():
    pair = [_Process(2.0, 1.0, 100), _Process(3.0, 2.0, 100)]
    ranks = _group("tailtower_2", *pair, together=True)
    assert ranks.median == 3.0
    assert ranks.examples == 100, "ranks of one training count the same examples"
    assert ranks.cpu_microseconds == pytest.approx(3.0 / 100 * 1e6)
    apart = _group("tailtower_control_2", *pair, together=False)
    assert apart.median == 2.5
    assert apart.examples == 200
    alone = _group("tailtower_1", pair[0], together=True)
    assert scaling.compare([ranks, apart, alone], "tailtower", 2) == {
        "efficiency_2": round(2.5 / 3.0, 3),
        "raw_efficiency_2": round(2.0 / 3.0, 3),
        "cpu_efficiency_2": 0.5,
    }


def test_every_rank_has_the_same_work(tmp_path):
    options = argparse.Namespace(
        ranks=[2, 4],
        rows=100,
        micro=16,
        macros=2,
        batch=64,
        traditional_micro=8,
        traditional_batch=32,
        sharding="auto",
        cache=tmp_path,
    )
    ours = scaling.Plan.of(options, "tailtower")
    for ranks in (1, 2, 4):
        job = ours.job(slice(ours.files * ranks), ranks)
        assert job.training.batch_size == 64, "as many negatives at any number of ranks"
        assert job.training.accumulate == 4 * ranks
        rows = sum(parquet_rows(path) for path in job.train_files)
        assert rows == 2 * 4 * 64 * ranks, "two macro-batches"
    theirs = scaling.Plan.of(options, "traditional")
    own = [theirs.job(slice(n, None, 4), 1) for n in range(4)]
    assert len({path for job in own for path in job.train_files}) == 4
    for job in own:
        assert sum(parquet_rows(path) for path in job.train_files) == 8 * 32
        assert job.training.batch_size * job.training.accumulate == 8 * 32


def test_more_ranks_than_cores_are_refused(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    good = argparse.Namespace(ranks=[2], micro=16, batch=64)
    scaling.check(good)
    for wrong in ({"ranks": [4]}, {"micro": 15}, {"batch": 63}):
        with pytest.raises(ConfigError):
            scaling.check(argparse.Namespace(**{**vars(good), **wrong}))


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_small_comparison_ends_with_all_keys(tmp_path, capsys):
    sizes = [
        "--rows",
        "2000",
        "--batch",
        "128",
        "--micro",
        "4",
        "--traditional-micro",
        "4",
        "--traditional-batch",
        "64",
    ]
    scaling.main([*sizes, "--macros", "1", "--runs", "1", "--cache", str(tmp_path)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    for key in (
        "efficiency_2",
        "raw_efficiency_2",
        "cpu_efficiency_2",
        "traditional_efficiency_2",
        "traditional_raw_efficiency_2",
        "exchange_bytes_ratio",
    ):
        assert report[key] > 0, key
    # Each vector is 256 bytes there and back, of six features; half of them are at home.
    ids = 8 * 18
    assert report["pooled_bytes_per_example"] == pytest.approx(6 * 256 + ids / 2, rel=0.15)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_small_plan_is_compared(tmp_path, capsys):
    sizes = ["--rows", "2000", "--batch", "128", "--micro", "4", "--ranks", "2"]
    plan.main([*sizes, "--macros", "1", "--runs", "1", "--cache", str(tmp_path)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(report["ranks"]) == {"1", "2"}
    for one in report["ranks"].values():
        assert one["predicted_seconds"] > 0
        assert one["measured_seconds"] > 0
    assert report["worst_error"] >= abs(report["ranks"]["1"]["error"])


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_the_gpu_script_checks_what_a_cpu_can(tmp_path):
    done = subprocess.run(
        ["benchmarks/gpu.sh", "--cache", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["accelerator"] is None
    assert report["left_out"] == {}
    assert report["gradient_error"] < 1e-5
    assert report["weight_error"] < 1e-5
    assert report["sharded_weight_error"] < 1e-4
    assert report["fp16_bytes_ratio"] == 0.5
    for key in ("ratio_vs_traditional", "async_gain", "short_type_gain"):
        assert report[key] > 0


def test_the_gpu_script_names_what_is_missing(tmp_path):
    """A Python without the packages is no failure: the JSON says what is not there."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$2" in *torch*) exit 1;; esac\nexit 0\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["benchmarks/gpu.sh"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"accelerator": None, "missing": "torch"}
