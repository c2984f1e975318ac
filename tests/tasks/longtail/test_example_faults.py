"""Example building when something breaks: the same bytes or a clear error, never wrong examples."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tasks.errors import DataError, LakeError
from tasks.lake import MANIFEST, Lake
from tasks.longtail import build_examples, events, example_users
from tasks.longtail.columns import read_schema
from tests.tasks.longtail.raw_lake import (
    at,
    day_of,
    run_steps,
    spec_of,
    write_partition,
)
from tests.tasks.longtail.raw_lake import events as table_of
from tests.tasks.longtail.world import World, digests

pytestmark = [pytest.mark.faults, pytest.mark.timeout(60, func_only=True)]
BEFORE = ("await_partition", "count", "vocabulary")


def target_of(task):
    return task.target("train") if callable(task.target) else task.target


def index_of(task):
    return task.index


def dies_once(function, target, marker, task):
    """The first task leaves half a file and takes its worker with it."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return function(task)
    lake = Lake(getattr(task, "url", None) or task.scratch.url)
    with lake.open_output(target(task)) as stream:
        stream.write(b"half a file")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.fixture(scope="module")
def scheduler():
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as remote:
        yield remote.scheduler_address


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """What the examples are when nothing breaks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_examples, "PART_BYTES", 25_000)
        spec = World(tmp_path_factory.mktemp("calm")).spec()
        run_steps(spec)
    return digests(spec)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (build_examples, "split_file"),
        (example_users, "split_users_file"),
        (build_examples, "item_stats"),
        (build_examples, "write_corpus"),
        (build_examples, "build_part"),
        (build_examples, "join_parts"),
    ],
)
def test_a_worker_killed_in_any_stage_leaves_the_same_bytes(
    tmp_path, monkeypatch, scheduler, calm, module, name
):
    monkeypatch.setattr(build_examples, "PART_BYTES", 25_000)
    world = World(tmp_path / "lake")
    run_steps(world.spec(), *BEFORE)
    marker = tmp_path / "killed"
    target = index_of if name == "write_corpus" else target_of
    monkeypatch.setattr(
        module, name, partial(dies_once, getattr(module, name), target, str(marker))
    )
    spec = world.spec(dask={"scheduler": scheduler})
    run_steps(spec, "examples")
    assert marker.exists()
    assert digests(spec) == calm


def manifest_of(lake, dataset, number):
    """The partition as a delivery with a manifest: its files are listed once and for all."""
    published = Lake(str(lake)).partition(f"raw/{dataset}", day_of(number))
    assert published is not None
    folder = lake / published.path
    (folder / MANIFEST).write_text(published.manifest.model_dump_json())
    return folder


def nothing_is_left(lake):
    published = list(lake.glob("examples/**/*"))
    return not [p for p in published if p.is_file()] and not list(lake.glob("scratch/*"))


@pytest.mark.parametrize("dataset", ["interactions", "items", "users"])
def test_a_raw_file_that_vanished_is_named(tmp_path, dataset):
    spec = World(tmp_path).spec()
    run_steps(spec, *BEFORE)
    folder = manifest_of(tmp_path, dataset, 1)
    victim = sorted(folder.glob("*.parquet"))[0]
    victim.unlink()
    with pytest.raises(DataError, match="cannot open the file") as caught:
        run_steps(spec, "examples")
    assert f"raw/{dataset}/dt={day_of(1)}/{victim.name}" in str(caught.value.where)
    assert nothing_is_left(tmp_path)


def test_a_file_that_vanishes_between_its_footer_and_its_rows_is_named(tmp_path, monkeypatch):
    spec = World(tmp_path).spec()
    run_steps(spec, *BEFORE)
    victim = tmp_path / "raw" / "interactions" / f"dt={day_of(2)}" / "1.parquet"

    def read_and_remove(lake, path):
        found = read_schema(lake, path)
        if path.endswith(f"dt={day_of(2)}/1.parquet"):
            victim.unlink()
        return found

    monkeypatch.setattr(events, "read_schema", read_and_remove)
    with pytest.raises(DataError, match="cannot read the file") as caught:
        run_steps(spec, "examples")
    assert str(victim) in str(caught.value.where)
    assert nothing_is_left(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    spec = World(tmp_path).spec()
    run_steps(spec, *BEFORE)
    victim = manifest_of(tmp_path, "interactions", 3) / "0.parquet"
    content = bytearray(victim.read_bytes())
    content[4:200] = b"\0" * 196  # the footer stays whole
    victim.write_bytes(content)
    with pytest.raises(DataError, match="cannot read the file") as caught:
        run_steps(spec, "examples")
    assert "0.parquet" in str(caught.value.where)
    assert nothing_is_left(tmp_path)


def test_a_file_that_was_exchanged_after_its_delivery_is_noticed(tmp_path):
    for number in (1, 2):
        rows = [("u", f"i{n}", at(number, n)) for n in range(5)]
        write_partition(tmp_path, "interactions", number, table_of(rows))
    spec = spec_of(tmp_path, 2)
    run_steps(spec, *BEFORE)
    manifest_of(tmp_path, "interactions", 1)
    write_partition(tmp_path, "interactions", 1, table_of([("u", "i0", at(1))]))
    with pytest.raises(LakeError, match="holds 1 rows, but its manifest says 5"):
        run_steps(spec, "examples")
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
    for number in (1, 2):
        rows = [(f"u{n % 900}", f"i{n % 700}", at(number, n)) for n in range(20_000)]
        write_partition(tmp_path, "interactions", number, table_of(rows))
    (lake / "raw").symlink_to(tmp_path / "raw")
    spec = spec_of(lake, 2)
    run_steps(spec, *BEFORE)
    with pytest.raises(LakeError, match="the lake's disk is full") as caught:
        run_steps(spec, "examples")
    assert caught.value.where == str(lake)
    assert nothing_is_left(lake)
