"""Publication by manifest: nothing half-written is visible, same inputs cost nothing."""

import os
import signal
import subprocess
import sys
import textwrap
from datetime import date

import pyarrow as pa
import pytest

from tasks.errors import DataError, LakeError
from tasks.lake import Lake
from tasks.version import PROJECT_ROOT

DAY = date(2026, 1, 3)
TABLE = pa.table({"id": ["a", "b", "c"]})


@pytest.fixture(params=["plain", "with space and ümlaut"])
def lake(request, tmp_path):
    return Lake(str(tmp_path / request.param))


def _write(output):
    output.write_table("part-0.parquet", TABLE)
    output.meta["kind"] = "test"


def _build(lake, write=_write, inputs=None, settings=None):
    return lake.build(
        "counts/x", DAY, write, inputs=inputs or {"raw": "1"}, settings=settings or {"s": 1}
    )


def test_published_output_is_found_again_without_work(lake):
    first = _build(lake)
    again = _build(lake, write=lambda output: pytest.fail("worked twice"))
    assert not first.reused
    assert again.reused
    assert again.digest == first.digest
    assert lake.read_tables(again).equals(TABLE)
    assert again.manifest.rows == 3
    assert again.manifest.meta == {"kind": "test"}


def test_other_inputs_or_settings_are_another_output(lake):
    paths = {
        _build(lake).path,
        _build(lake, inputs={"raw": "2"}).path,
        _build(lake, settings={"s": 2}).path,
    }
    assert len(paths) == 3


def test_digest_depends_on_content_not_on_the_attempt(tmp_path):
    one = _build(Lake(str(tmp_path / "one")))
    two = _build(Lake(str(tmp_path / "two")))
    assert one.manifest.files[0].path != two.manifest.files[0].path
    assert one.digest == two.digest
    other = _build(
        Lake(str(tmp_path / "three")),
        write=lambda output: output.write_table("part-0.parquet", TABLE.slice(1)),
    )
    assert other.digest != one.digest


def test_failed_write_leaves_nothing(lake):
    def fail(output):
        output.write_table("part-0.parquet", TABLE)
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError):
        _build(lake, write=fail)
    assert lake.days("counts/x") == [DAY]
    key = lake.list_folders(f"counts/x/dt={DAY}")
    assert [lake.list_folders(f"counts/x/dt={DAY}/{name}") for name in key] == [[]]
    assert _build(lake).manifest.rows == 3


@pytest.mark.faults
def test_killed_writer_leaves_nothing_that_looks_complete(tmp_path):
    script = textwrap.dedent(
        f"""
        import os, signal
        from datetime import date
        import pyarrow as pa
        from tasks.lake import Lake

        def write(output):
            output.write_table("part-0.parquet", pa.table({{"id": [1]}}))
            os.kill(os.getpid(), signal.SIGKILL)

        Lake({str(tmp_path)!r}).build("counts/x", date(2026, 1, 3), write, inputs={{"raw": "1"}},
                                      settings={{"s": 1}})
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    lake = Lake(str(tmp_path))
    (key,) = lake.list_folders(f"counts/x/dt={DAY}")
    assert lake.find(f"counts/x/dt={DAY}/{key}") is None
    assert lake.read_tables(_build(lake)).equals(TABLE)


def test_marker_only_partition_gets_a_manifest_from_its_files(lake):
    assert lake.partition("raw/interactions", DAY) is None
    path = f"raw/interactions/dt={DAY}"
    import pyarrow.parquet as pq

    with lake.open_output(f"{path}/b.parquet") as stream:
        pq.write_table(TABLE, stream)
    with lake.open_output(f"{path}/.hidden.parquet") as stream:
        stream.write(b"half a file")
    assert lake.partition("raw/interactions", DAY) is None
    lake.write_text(f"{path}/_SUCCESS", "")
    found = lake.partition("raw/interactions", DAY)
    assert [entry.path for entry in found.manifest.files] == ["b.parquet"]
    assert found.manifest.rows == 3
    with lake.open_output(f"{path}/b.parquet") as stream:
        pq.write_table(TABLE.slice(1), stream)
    assert lake.partition("raw/interactions", DAY).digest != found.digest


def test_marker_without_files_and_false_parquet_are_named(lake):
    path = f"raw/interactions/dt={DAY}"
    lake.write_text(f"{path}/x.txt", "")
    lake.write_text(f"{path}/_SUCCESS", "")
    with pytest.raises(DataError, match="holds no Parquet file"):
        lake.partition("raw/interactions", DAY)
    lake.write_text(f"{path}/a.parquet", "user,item\n1,2\n")
    with pytest.raises(DataError, match="not a Parquet file") as caught:
        lake.partition("raw/interactions", DAY)
    assert "a.parquet" in str(caught.value)


@pytest.mark.parametrize("name", ["dt=20260101", "date=2026-01-01", "dt=2026-13-01"])
def test_odd_partition_names_are_refused_not_skipped(lake, name):
    lake.write_text(f"raw/interactions/{name}/_SUCCESS", "")
    with pytest.raises(DataError) as caught:
        lake.days("raw/interactions")
    assert name in str(caught.value)


def test_damaged_manifest_and_missing_output_are_named(lake):
    published = _build(lake)
    lake.write_text(f"{published.path}/manifest.json", "{}")
    with pytest.raises(LakeError, match="manifest is damaged"):
        lake.find(published.path)
    with pytest.raises(LakeError, match="output is missing"):
        lake.open_published("counts/none")


def test_unusable_location_is_one_clear_error():
    with pytest.raises(LakeError, match="not a location"):
        Lake("nowhere://x/y")
