"""Counting when something breaks: a clear error or the right counts, never wrong ones."""

import os
import signal
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tasks.errors import ClusterError, DataError, LakeError
from tasks.lake import MANIFEST, Lake
from tasks.longtail import batches, columns
from tests.tasks.longtail.raw_lake import (
    at,
    day_of,
    events,
    read_output,
    run_steps,
    spec_of,
    write_partition,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(60, func_only=True)]


def rows_of(number, rows=60):
    return [(f"u{n % 7}", f"i{(n * n + number) % 11}", at(1, n)) for n in range(rows)]


def fill(lake, files=2, rows=60):
    tables = {f"{n:03}.parquet": events(rows_of(n, rows)) for n in range(files)}
    write_partition(lake, "interactions", 1, tables)


def manifest_of(lake):
    """The partition as a delivery with a manifest: its files are listed once and for all."""
    published = Lake(str(lake)).partition("raw/interactions", day_of(1))
    assert published is not None
    path = lake / published.path / MANIFEST
    path.write_text(published.manifest.model_dump_json())
    return lake / published.path


def nothing_is_left(lake):
    left = [path for path in lake.rglob("*") if path.is_file() and "raw" not in path.parts]
    return left == []


@pytest.fixture
def two_workers():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as remote,
        Client(remote) as client,
    ):
        client.wait_for_workers(2)
        yield client


@pytest.mark.slow
@pytest.mark.integration
def test_a_worker_killed_while_it_counts_leaves_the_same_bytes(tmp_path, two_workers):
    for name in ("calm", "killed"):
        fill(tmp_path / name, files=60, rows=3000)
    calm = spec_of(tmp_path / "calm", 2)
    run_steps(calm, "count")
    address = two_workers.scheduler.address
    spec = spec_of(tmp_path / "killed", 2, dask={"scheduler": address})
    victims = two_workers.run(os.getpid)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_steps, spec, "count")
        while not list((tmp_path / "killed").glob("scratch/*/*.arrow")):
            assert not running.done()
            time.sleep(0.005)
        os.kill(next(iter(victims.values())), signal.SIGKILL)
        running.result()
    assert set(two_workers.run(os.getpid).values()) != set(victims.values())
    assert spec.require("count").digests == calm.require("count").digests
    found = read_output(spec, "count", f"user/{day_of(1)}").to_pydict()
    expected = Counter(row[0] for n in range(60) for row in rows_of(n, 3000))
    assert dict(zip(found["id"], found["count"], strict=True)) == expected


def test_a_file_that_vanished_after_its_delivery_is_named(tmp_path):
    fill(tmp_path)
    (manifest_of(tmp_path) / "001.parquet").unlink()
    with pytest.raises(DataError, match="cannot open the file") as caught:
        run_steps(spec_of(tmp_path, 2), "count")
    assert "001.parquet" in str(caught.value)
    assert nothing_is_left(tmp_path)


def test_a_file_that_vanishes_between_its_footer_and_its_rows_is_named(tmp_path, monkeypatch):
    fill(tmp_path)
    folder = manifest_of(tmp_path)
    real = columns.read_schema

    def read_and_remove(lake, path):
        found = real(lake, path)
        (folder / "000.parquet").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(batches, "read_schema", read_and_remove)
    with pytest.raises(DataError, match="cannot read the file") as caught:
        run_steps(spec_of(tmp_path, 2), "count")
    assert "000.parquet" in str(caught.value)
    assert nothing_is_left(tmp_path)


def test_a_file_that_was_exchanged_after_its_delivery_is_noticed(tmp_path):
    fill(tmp_path)
    folder = manifest_of(tmp_path)
    write_partition(tmp_path, "interactions", 1, {"001.parquet": events(rows_of(1, 59))})
    assert (folder / MANIFEST).exists()
    with pytest.raises(LakeError, match="119 rows, but its manifest says 120"):
        run_steps(spec_of(tmp_path, 2), "count")
    assert nothing_is_left(tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_fills_is_a_lake_error_and_publishes_nothing(tmp_path, small_disk):
    lake = small_disk / "lake"
    lake.mkdir()
    raw = tmp_path / "raw"
    numbers = [n * 2654435761 for n in range(60_000)]
    table = pa.table(
        {
            "user_id": numbers,
            "item_id": numbers,
            "timestamp": pa.array([at(1)] * len(numbers), pa.timestamp("us", tz="UTC")),
        }
    )
    write_partition(tmp_path, "interactions", 1, table)
    (lake / "raw").symlink_to(raw)
    with pytest.raises(LakeError, match="the lake's disk is full") as caught:
        run_steps(spec_of(lake, 2), "count")
    assert caught.value.where == str(lake)
    assert not list(lake.glob("counts/**/manifest.json"))
    assert not list(lake.glob("scratch/*"))


@pytest.mark.slow
@pytest.mark.integration
def test_a_cluster_without_workers_ends_the_step(tmp_path):
    from distributed import LocalCluster

    fill(tmp_path)
    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty:
        settings = {"scheduler": empty.scheduler_address, "workers_timeout_seconds": 2}
        spec = spec_of(tmp_path, 2, dask=settings)
        started = time.monotonic()
        with pytest.raises(ClusterError, match="no workers"):
            run_steps(spec, "count")
        assert time.monotonic() - started < 30
    assert nothing_is_left(tmp_path)
