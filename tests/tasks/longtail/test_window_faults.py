"""Merging of windows when something breaks: the same vocabularies or a clear error."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tasks.errors import DataError, LakeError
from tasks.lake import Lake
from tasks.longtail import window_merge
from tasks.longtail.window_parts import merge_window_part
from tests.tasks.longtail.raw_lake import TABLES, at, events, run_steps, spec_of, write_partition

pytestmark = [pytest.mark.faults, pytest.mark.timeout(60, func_only=True)]
DAYS = 4
POLICY = {"min_count": 3, "tail_buckets": 3}


@pytest.fixture(autouse=True)
def kept_windows_in_parts(monkeypatch):
    monkeypatch.setattr(window_merge, "ROWS_PER_PART", 25)
    monkeypatch.setattr(window_merge, "ROWS_TO_KEEP", 1)


def counted(lake, **settings):
    """A lake whose days are counted, and the run that makes its vocabularies."""
    for number in range(1, DAYS + 1):
        rows = [((n * n * number) % 97, n % 7, at(number, n)) for n in range(120)]
        write_partition(lake, "interactions", number, events(rows))
    tables = {**TABLES, "user": {"source": "interactions.user_id", "vocabulary": POLICY}}
    run_steps(spec_of(lake, DAYS + 1, tables=tables, data={"window_days": 2}), "count")
    spec = spec_of(lake, DAYS + 1, tables=tables, data={"window_days": 2}, **settings)
    run_steps(spec, "count")
    return spec


def dies_once(marker, task):
    """A window that is carried on: the worker leaves half a file and is gone."""
    if task.before is None or Path(marker).exists():
        return merge_window_part(task)
    Path(marker).touch()
    with Lake(task.url).open_output(task.state.top) as stream:
        stream.write(b"half a file")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.slow
@pytest.mark.integration
def test_a_worker_killed_while_it_carries_a_window_on_leaves_the_same_bytes(tmp_path, monkeypatch):
    from distributed import LocalCluster

    calm = counted(tmp_path / "calm")
    run_steps(calm, "vocabulary")
    marker = tmp_path / "killed"
    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as remote:
        spec = counted(tmp_path / "lake", dask={"scheduler": remote.scheduler_address})
        monkeypatch.setattr(window_merge, "merge_window_part", partial(dies_once, str(marker)))
        run_steps(spec, "vocabulary")
    assert marker.exists()
    for table in ("user", "item"):
        found, expected = (s.output("vocabulary", table).manifest for s in (spec, calm))
        assert [e.digest for e in found.files] == [e.digest for e in expected.files]


def test_a_disk_that_fills_is_a_lake_error_and_publishes_nothing(tmp_path):
    spec = counted(tmp_path / "lake")
    window = tmp_path / "lake" / "window"
    window.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", window],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        with pytest.raises(LakeError, match="the lake's disk is full"):
            run_steps(spec, "vocabulary")
        assert not list(window.glob("**/manifest.json"))
    finally:
        subprocess.run(["umount", "--lazy", window], check=True)
    # With room again the same command goes on.
    assert run_steps(spec, "vocabulary").facts["built"] == 2 * DAYS


def test_a_kept_window_that_lost_a_file_is_named_and_one_that_lost_a_day_is_merged_again(tmp_path):
    spec = counted(tmp_path)
    run_steps(spec, "vocabulary")
    expected = spec.output("vocabulary", "user").digest
    lake = Lake(str(tmp_path))
    days = lake.list_folders("window/user")

    def again():
        lake.delete(f"vocabulary/user/{days[-1]}")
        lake.delete(f"window/user/{days[-1]}")
        run_steps(spec, "vocabulary")
        return spec.output("vocabulary", "user").digest

    # The first window of two days wrote the stretches that those after it point to.
    first = next((tmp_path / "window" / "user" / days[1]).glob("*/*/part-00000-stretch-7.arrow"))
    kept = first.read_bytes()
    first.unlink()
    with pytest.raises(DataError, match="cannot open the file"):
        again()
    first.write_bytes(kept)
    assert again() == expected
    lake.delete(f"window/user/{days[1]}")
    assert again() == expected
