"""The counting benchmark runs, compares the tables it timed, and prints one JSON object last."""

import json

import polars as pl
import pytest

from benchmarks import counting
from benchmarks.__main__ import scripts
from benchmarks.counting_figure import draw


def test_every_benchmark_says_in_one_line_what_it_measures():
    found = scripts()
    assert "counting" in found
    assert all(line.endswith(".") for line in found.values())


def test_tables_that_differ_fail_the_benchmark(tmp_path):
    ours, theirs = tmp_path / "lake", tmp_path / "theirs"
    theirs.mkdir()
    table = pl.DataFrame({"id": [1, 2], "count": [3, 4]})
    for name in ("user", "item"):
        folder = ours / "counts" / name / "dt=2026-01-01"
        folder.mkdir(parents=True)
        table.write_parquet(folder / "part-0.parquet")
        table.reverse().write_parquet(theirs / f"{name}_id.parquet")
    counting.check_equal(ours, theirs, "other")
    table.with_columns(count=pl.lit(3)).write_parquet(theirs / "item_id.parquet")
    with pytest.raises(AssertionError, match="other and the product count item_id differently"):
        counting.check_equal(ours, theirs, "other")


def test_the_figure_shows_what_was_measured(tmp_path):
    one = {"seconds": 2.0, "peak_mib": 300}
    report = {"events": 10**6, "tailtower": one, "polars": one, "growth": {"1000000": one}}
    draw(report, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert text.startswith("<?xml")
    draw({"incremental_ratio": 1.0}, tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_small_run_ends_with_all_keys(tmp_path, capsys):
    small = ["--events", "16k", "--day-events", "500", "--runs", "1", "--growth"]
    counting.main([*small, "--without", "dask_naive", "--cache", str(tmp_path)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["events"] == 16_000
    for key in ("ratio_vs_duckdb", "ratio_vs_polars", "peak_rss_ratio", "incremental_ratio"):
        assert report[key] > 0
    assert list(report["growth"]) == ["4000", "16000", "64000"]
    assert not list(tmp_path.glob("counting-*"))
