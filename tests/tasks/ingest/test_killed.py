"""Protects readers from a killed ingest: a day is whole or not there, and a re-run finishes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.ingest import ingest
from tasks.lake import Lake
from tasks.version import PROJECT_ROOT

DAYS, PER_DAY = 60, 40
SCRIPT = """
import sys
from tasks.ingest import ingest
from tasks.lake import Lake
ingest(sys.argv[1], Lake(sys.argv[2]), scratch=sys.argv[3])
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    lines = ["user_id,item_id,timestamp"]
    for n in range(DAYS * PER_DAY):
        lines.append(f"u{n},i{n % 97},{1767225600 + (n % DAYS) * 86_400 + n % 1000}")
    path = tmp_path / "events.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def kill_when(source: str, lake: Lake, scratch: Path, ready: str) -> None:
    """Starts an ingest in a process of its own and kills it once `ready` has matches."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, source, lake.url, str(scratch)],
        cwd=PROJECT_ROOT,
        stderr=subprocess.DEVNULL,
    )
    where = scratch if ready.startswith("tailtower") else Path(lake.root)
    deadline = time.monotonic() + 60
    while not list(where.glob(ready)):
        assert process.poll() is None, "the ingest ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.faults
@pytest.mark.parametrize(
    "ready", ["tailtower-ingest-*", "raw/interactions/dt=*", "raw/interactions/*/manifest.json"]
)
def test_nothing_half_written_is_visible_and_a_rerun_finishes(tmp_path, source, ready):
    lake, scratch = Lake(str(tmp_path / "lake")), tmp_path / "scratch"
    scratch.mkdir()
    kill_when(source, lake, scratch, ready)

    assert not list(Path(lake.root).glob("reports/ingest/*.json"))
    complete = [
        day for day in lake.days("raw/interactions") if lake.partition("raw/interactions", day)
    ]
    assert len(complete) < DAYS
    for day in complete:
        published = lake.partition("raw/interactions", day)
        assert published is not None
        assert lake.read_tables(published).num_rows == published.manifest.rows == PER_DAY
    assert list(scratch.iterdir()), "the killed process left its working files"

    report = ingest(source, lake, scratch=str(scratch))
    assert not report.reused
    assert report.interactions.actions.get("unchanged", 0) == len(complete)
    assert list(scratch.iterdir()) == []
    untouched = Lake(str(tmp_path / "untouched"))
    ingest(source, untouched)
    for day in untouched.days("raw/interactions"):
        once, again = (each.partition("raw/interactions", day) for each in (untouched, lake))
        assert once is not None
        assert again is not None
        assert once.digest == again.digest
