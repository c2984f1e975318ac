"""Protects `tailtower profile`: a job's memory and time are shown and nothing of it is changed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from models.reader import ExampleReader
from tasks.cli import main
from tests.models.worlds import make_job, make_world


def test_profile_shows_every_part_and_leaves_the_job_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(tmp_path / "w", num_users=60, num_items=50)
    job = make_job(world, tmp_path / "job", accumulate=1, batch_size=32)
    steps = ExampleReader(job, world.num_items).steps
    assert steps > 8, "the job is longer than what is profiled"
    path = tmp_path / "job.json"
    path.write_text(job.model_dump_json())
    status = main(["profile", str(path), "--steps", "3", "--trace", "1", "--output", str(tmp_path)])
    assert status == 0
    shown = capsys.readouterr().err
    for part in ("tables", "optimizer", "activations", "input", "towers"):
        assert any(line.split()[:1] == [part] and "MiB" in line for line in shown.splitlines())
    for part in ("towers forward", "towers backward", "scores and loss", "updating"):
        assert part in shown
    assert "examples/s" in shown
    (trace,) = tmp_path.glob("trace-*.json.gz")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert not (tmp_path / "job").exists()


def test_what_is_no_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    assert main(["profile", str(path)]) != 0
    path.write_text("{}")
    assert main(["profile", str(path)]) != 0
    assert "no training job" in capsys.readouterr().err
