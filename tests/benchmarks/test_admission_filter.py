"""The benchmark of sketches runs, holds both lakes against each other, and prints one object."""

import json

import pytest

from benchmarks import admission_filter

pytest.importorskip("datasketches", reason="needs Apache DataSketches: install tailtower[sketch]")


def test_a_window_that_does_not_hold_the_days_is_refused(capsys):
    with pytest.raises(SystemExit):
        admission_filter.parse(["--days", "31"])
    assert "1 to 30" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_small_run_ends_with_all_keys(tmp_path, capsys):
    small = ["--days", "3", "--day-events", "8k", "--users", "4k", "--items", "2k", "--runs", "1"]
    admission_filter.main([*small, "--confidence", "0.8", "--cache", str(tmp_path)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["bytes"]["exact"]["sketch"] == 0
    assert 0 < report["bytes"]["sketch"]["sketch"] < report["bytes"]["exact"]["parquet"]
    for key in ("count_time_ratio", "vocabulary_time_ratio", "bytes_ratio", "seen_once_share"):
        assert report[key] > 0
    for table in ("user", "item"):
        found = report[table]
        assert 0 < found["ids_known"] < found["ids"]
        assert 0 < found["overestimate_mean"] < 3 * 0.2
        assert 1 <= found["overestimate_worst"] <= 3
        assert 0 <= found["missed_share"] < 1
        assert found["owners"] > 0
    assert not list(tmp_path.glob("admission-*"))
