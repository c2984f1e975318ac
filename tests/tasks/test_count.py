"""The count step: exact on awkward IDs, incremental, independent of files, parts and workers."""

import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import DataError, LakeError
from tasks.lake import Lake
from tasks.longtail import cluster, day_counts, window_merge
from tasks.longtail.batches import IdFile
from tasks.longtail.counting import check_sum
from tests.tasks.longtail.raw_lake import (
    TABLES,
    at,
    day_of,
    events,
    read_output,
    run_steps,
    spec_of,
    write_partition,
)

TAGS = {
    **TABLES,
    "tag": {"source": "items.tags", "vocabulary": {"min_count": 1}},
}


def counted(spec, table, number):
    rows = read_output(spec, "count", f"{table}/{day_of(number)}").to_pydict()
    assert len(set(rows["id"])) == len(rows["id"])
    return dict(zip(rows["id"], rows["count"], strict=True))


def meta(spec, table, number):
    return spec.output("count", f"{table}/{day_of(number)}").manifest.meta


def count(spec):
    return run_steps(spec, "await_partition", "count")


def skewed(number, rows=400):
    return [
        (f"u{(n * n) % 37}", f"i{(n * 7 + number) % (3 + n % 29)}", at(number, n))
        for n in range(rows)
    ]


def test_counts_equal_a_counter_whatever_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(day_counts, "ROWS_PER_PART", 60)
    rows = skewed(1)
    whole, split = tmp_path / "whole", tmp_path / "split"
    write_partition(whole, "interactions", 1, events(rows))
    backwards = rows[::-1]
    write_partition(
        split,
        "interactions",
        1,
        {"z.parquet": events(backwards[:123]), "b.parquet": events(backwards[123:])},
    )
    files = []
    for lake in (whole, split):
        write_partition(lake, "interactions", 2, events([("u", "i", at(2))]))
        spec = spec_of(lake, 2)
        count(spec)
        assert counted(spec, "user", 1) == Counter(row[0] for row in rows)
        assert counted(spec, "item", 1) == Counter(row[1] for row in rows)
        published = spec.output("count", f"user/{day_of(1)}")
        assert published.manifest.meta["parts"] == 8
        files.append([entry.digest for entry in published.manifest.files])
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("ids", "data_type"),
    [
        (["7", "07", "", "é", "e\u0301", "x" * 1_000_000, "7"], pa.string()),
        (["7", "07", "7"], pa.large_string()),
        (["b", "a", "b"], pa.dictionary(pa.int32(), pa.string())),
        ([2**63 - 1, -(2**63), 0, 2**53, 2**53 + 1, 0], pa.int64()),
        ([2**64 - 1, 2**63, 0, 0], pa.uint64()),
        ([3, 3, 250], pa.uint8()),
    ],
)
def test_every_kind_of_id_comes_back_exactly(tmp_path, ids, data_type):
    column = (
        pa.array(ids, pa.string()).cast(data_type)
        if data_type == pa.dictionary(pa.int32(), pa.string())
        else pa.array(ids, data_type)
    )
    table = pa.table(
        {
            "user_id": pa.chunked_array([column, column]),
            "item_id": pa.array(["i"] * 2 * len(ids)),
            "timestamp": pa.array([at(1)] * 2 * len(ids), pa.timestamp("us", tz="UTC")),
        }
    )
    write_partition(tmp_path, "interactions", 1, table)
    write_partition(tmp_path, "interactions", 2, table)
    spec = spec_of(tmp_path, 2)
    count(spec)
    assert counted(spec, "user", 1) == {key: 2 * n for key, n in Counter(ids).items()}


def column_of(values, data_type, rows=None):
    rows = rows or len(values)
    return pa.table(
        {
            "user_id": pa.array(values, data_type),
            "item_id": pa.array(["i"] * rows),
            "timestamp": pa.array([at(1)] * rows, pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.mark.parametrize(
    ("ids", "data_type"),
    [
        ([2**64 - 1, None, 2**53 + 1, 2**53, None, 2**64 - 1], pa.uint64()),
        ([None, 2**53 + 1, 2**53], pa.int64()),
        ([None, "", "", "\x00"], pa.string()),
        ([[2**53 + 1, None], None, [], [2**53 + 1]], pa.list_(pa.int64())),
    ],
)
def test_nulls_leave_the_ids_beside_them_exact(tmp_path, ids, data_type):
    for number in (1, 2):
        write_partition(tmp_path, "interactions", number, column_of(ids, data_type))
    spec = spec_of(tmp_path, 2)
    count(spec)
    flat = [x for element in ids for x in (element if isinstance(element, list) else [element])]
    assert counted(spec, "user", 1) == Counter(x for x in flat if x is not None)
    assert meta(spec, "user", 1)["nulls"] == sum(x is None for x in flat)


def test_a_column_of_arrows_null_type_holds_nulls_only_and_fits_every_other_type(tmp_path):
    """What a writer leaves of a file or a day whose IDs are all missing."""
    empty = column_of([None, None], pa.null())
    write_partition(
        tmp_path, "interactions", 1, {"a.parquet": empty, "b.parquet": column_of([5], pa.int64())}
    )
    write_partition(tmp_path, "interactions", 2, empty)
    write_partition(tmp_path, "interactions", 3, column_of([5], pa.int64()))
    spec = spec_of(tmp_path, 4)
    run_steps(spec, "count", "vocabulary")
    assert counted(spec, "user", 1) == {5: 1}
    assert (meta(spec, "user", 1)["nulls"], meta(spec, "user", 1)["id_type"]) == (2, "Int64")
    assert counted(spec, "user", 2) == {}
    assert (meta(spec, "user", 2)["nulls"], meta(spec, "user", 2)["id_type"]) == (2, "Null")
    assert spec.output("vocabulary", "user").manifest.meta["health"]["ids"] == 1


def test_lists_that_are_all_empty_hold_nothing_whatever_their_type(tmp_path):
    """A writer that saw no element leaves lists of Arrow's null type."""
    nothing = column_of([[], None, [None, None]], pa.list_(pa.null()))
    some = column_of([["a"], [], None], pa.list_(pa.string()))
    write_partition(tmp_path, "interactions", 1, {"a.parquet": nothing, "b.parquet": some})
    for number in (2, 3):
        write_partition(tmp_path, "interactions", number, nothing)
    spec = spec_of(tmp_path, 3)
    count(spec)
    assert counted(spec, "user", 1) == {"a": 1}
    assert (meta(spec, "user", 1)["nulls"], meta(spec, "user", 1)["id_type"]) == (4, "String")
    assert counted(spec, "user", 2) == {}
    assert (meta(spec, "user", 2)["nulls"], meta(spec, "user", 2)["id_type"]) == (3, "Null")


def test_text_that_is_not_utf8_is_refused_by_name(tmp_path):
    raw = pa.array([b"ok", b"\xff\xfe"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    table = column_of(["a", "b"], pa.string()).set_column(0, "user_id", text)
    write_partition(tmp_path, "interactions", 1, table)
    with pytest.raises(DataError, match=r"a\.parquet"):
        run_steps(spec_of(tmp_path, 2), "count")


@pytest.mark.parametrize("row_group", [50, 400])
def test_batches_change_nothing_but_memory(tmp_path, monkeypatch, row_group):
    """Row groups smaller and larger than a batch are read in different ways."""
    rows = skewed(1)
    numbers = pa.array([int(row[0][1:]) << 50 for row in rows])
    tags = pa.array([[row[0], row[1]] for row in rows])
    tables = {**TABLES, "tag": {"source": "interactions.tags"}}
    digests = []
    for name, batch_bytes in (("whole", "64MiB"), ("pieces", 2048)):
        folder = tmp_path / name / "raw" / "interactions" / f"dt={day_of(1)}"
        folder.mkdir(parents=True)
        table = events(rows, tags=tags).set_column(0, "user_id", numbers)
        pq.write_table(table, folder / "a.parquet", row_group_size=row_group)
        (folder / "_SUCCESS").touch()
        spec = spec_of(tmp_path / name, 2, tables=tables, dask={"batch_bytes": batch_bytes})
        batches: list[int] = []
        real = IdFile.batches

        def watched(file, size, real=real, batches=batches):
            for frame in real(file, size):
                batches.append(frame.height)
                yield frame

        with monkeypatch.context() as patched:
            patched.setattr(IdFile, "batches", watched)
            run_steps(spec, "count")
        assert sum(batches) == 400
        assert (len(batches) > 4) == (name == "pieces")
        digests.append(spec.require("count").digests)
    assert digests[0] == digests[1]


def test_nulls_are_counted_apart_and_lists_are_exploded(tmp_path):
    users = pa.array(["u", None, None, "u"])
    items = pa.array([None, "i", "i", "j"])
    times = pa.array([at(1)] * 4, pa.timestamp("us", tz="UTC"))
    table = pa.table({"user_id": users, "item_id": items, "timestamp": times})
    tags = pa.array([["a", "b", "a"], [], None, ["b", None]], pa.list_(pa.string()))
    write_partition(tmp_path, "interactions", 1, table)
    write_partition(tmp_path, "interactions", 2, table)
    write_partition(tmp_path, "items", 1, pa.table({"item_id": ["i", "j", "k", "l"], "tags": tags}))
    spec = spec_of(tmp_path, 2, tables=TAGS)
    count(spec)
    assert counted(spec, "user", 1) == {"u": 2}
    assert counted(spec, "item", 1) == {"i": 2, "j": 1}
    assert counted(spec, "tag", 1) == {"a": 2, "b": 2}
    # A null list is one null, an empty list holds nothing.
    assert meta(spec, "tag", 1)["nulls"] == 2
    assert meta(spec, "tag", 1)["events"] == 4
    assert (meta(spec, "user", 1)["nulls"], meta(spec, "item", 1)["nulls"]) == (2, 1)


def test_a_late_file_recounts_its_day_only(tmp_path):
    for number in (1, 2, 3):
        write_partition(tmp_path, "interactions", number, events(skewed(number, 20)))
    spec = spec_of(tmp_path, 3)
    assert count(spec).facts["counted_days"] == 4
    before = spec.require("count")
    assert count(spec).facts["counted_days"] == 0
    late = events([("late", "i1", at(1))])
    write_partition(tmp_path, "interactions", 1, {"late.parquet": late})
    after = count(spec)
    assert after.facts["counted_days"] == 2
    changed = {name for name in after.digests if after.digests[name] != before.digests[name]}
    assert changed == {f"item/{day_of(1)}", f"user/{day_of(1)}"}
    assert counted(spec, "user", 1)["late"] == 1


def test_the_test_day_is_not_counted_and_earlier_days_than_the_window_are(tmp_path):
    for number in range(1, 6):
        write_partition(tmp_path, "interactions", number, events(skewed(number, 5)))
    spec = spec_of(tmp_path, 4, data={"window_days": 2})
    assert sorted(count(spec).outputs) == sorted(
        f"{table}/{day_of(n)}" for table in ("item", "user") for n in (1, 2, 3)
    )


def test_with_nothing_to_do_neither_polars_nor_dask_is_imported(tmp_path):
    for number in (1, 2):
        write_partition(tmp_path, "interactions", number, events(skewed(number, 5)))
    spec = spec_of(tmp_path, 2)
    count(spec)
    spec.save()
    code = (
        "import sys\n"
        "from tasks import count\n"
        "from tasks.run_spec import load_run_spec\n"
        f"assert count.run(load_run_spec({spec.uri!r})).facts['counted_days'] == 0\n"
        "print(sorted({'polars', 'distributed', 'torch', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_scratch_files_are_gone_afterwards_also_after_an_error(tmp_path):
    write_partition(tmp_path, "interactions", 1, events(skewed(1, 5)))
    write_partition(tmp_path, "interactions", 2, events(skewed(2, 5)))
    count(spec_of(tmp_path, 2))
    write_partition(tmp_path, "interactions", 1, {"b.parquet": events([(1, "i", at(1))])})
    with pytest.raises(DataError):
        count(spec_of(tmp_path, 2))
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"user_id": ["u"], "item_id": ["i"]}), "no column 'timestamp'"),
        (pa.table({"user": ["u"], "item_id": ["i"]}), "no column 'user_id'"),
        (pa.table({"user_id": [1.5], "item_id": ["i"]}), "'user_id' is double, not an ID"),
    ],
)
def test_wrong_columns_are_named(tmp_path, table, message):
    write_partition(tmp_path, "interactions", 1, table)
    write_partition(tmp_path, "interactions", 2, table)
    tables = {
        **TABLES,
        "hour": {"source": "interactions.timestamp"},
    }
    with pytest.raises(DataError, match=message) as caught:
        count(spec_of(tmp_path, 2, tables=tables if "timestamp" in message else TABLES))
    assert "dt=2026-03-01/a.parquet" in str(caught.value)


def test_one_day_with_two_types_is_refused(tmp_path):
    mixed = {"a.parquet": events([("1", "i", at(1))]), "b.parquet": events([(1, "i", at(1))])}
    write_partition(tmp_path, "interactions", 1, mixed)
    write_partition(tmp_path, "interactions", 2, events([("1", "i", at(2))]))
    with pytest.raises(DataError, match="Int64 in one file and String in another"):
        count(spec_of(tmp_path, 2))


def test_a_missing_side_table_is_named(tmp_path):
    for number in (1, 2):
        write_partition(tmp_path, "interactions", number, events(skewed(number, 5)))
    with pytest.raises(DataError, match=r"counts items\.tags, but the lake has no raw/items"):
        count(spec_of(tmp_path, 2, tables=TAGS))


def test_a_damaged_file_is_named(tmp_path):
    for number in (1, 2):
        write_partition(tmp_path, "interactions", number, events(skewed(number, 500)))
    spec = spec_of(tmp_path, 2)
    run_steps(spec, "await_partition")
    path = tmp_path / "raw" / "interactions" / f"dt={day_of(1)}" / "a.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    assert pq.read_metadata(path).num_rows == 500
    with pytest.raises(DataError, match=r"cannot read the file") as caught:
        run_steps(spec, "count")
    assert "a.parquet" in str(caught.value)


def test_counts_that_do_not_add_up_are_refused():
    check_sum(7, 3, 10, "here")
    with pytest.raises(LakeError, match="7 counted \\+ 2 nulls != 10"):
        check_sum(7, 2, 10, "here")


@pytest.mark.integration
@pytest.mark.timeout(240)
def test_one_and_two_dask_workers_write_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(day_counts, "ROWS_PER_PART", 100)
    monkeypatch.setattr(window_merge, "ROWS_PER_PART", 20)
    monkeypatch.setattr(window_merge, "ROWS_TO_KEEP", 1)
    digests = []
    for workers in (0, 1, 2):
        lake = tmp_path / str(workers)
        for number in (1, 2, 3):
            rows = skewed(number)
            files = {f"{n}.parquet": events(rows[n::3]) for n in range(3)}
            write_partition(lake, "interactions", number, files)
        monkeypatch.setattr(cluster, "SMALL_BYTES", 0 if workers else 1 << 30)
        spec = spec_of(lake, 3, dask={"workers": max(workers, 1)})
        run_steps(spec, "count", "vocabulary")
        digests.append([spec.require(step).digests for step in ("count", "vocabulary")])
        assert Lake(str(lake)).list_folders("scratch") == []
    assert digests[0] == digests[1] == digests[2]
