"""The validation benchmark measures what it says, judges it, and prints one JSON object last."""

import json
from typing import Any

import pytest

from benchmarks import validation
from benchmarks.validation_figure import draw

SIZES = [
    {"events": 10**6, "cpu_seconds_per_million": 1.3, "peak_mib": 400},
    {"events": 4 * 10**6, "cpu_seconds_per_million": 1.1, "peak_mib": 480},
]


def test_goals_are_judged_by_the_largest_day_and_the_worst_kind_of_ids():
    report = {"ids": {"int64": SIZES, "string": [SIZES[0], {**SIZES[1], "peak_mib": 600}]}}
    judged = validation.compared_with_goals(report)
    assert judged["cpu_seconds_per_million"] == {"found": 1.1, "at_most": 1.2, "met": True}
    assert judged["peak_ratio"] == {"found": 1.5, "at_most": 1.25, "met": False}
    assert set(judged) == {"cpu_seconds_per_million", "peak_ratio"}


def test_the_figure_shows_what_was_measured(tmp_path):
    run = {"seconds": {"validate": 1.0, "count": 9.0}, "share": 0.1}
    report: dict[str, Any] = {
        "ids": {"int64": SIZES},
        "daily_run": {"rows": 10**6, "first": run, "daily": run},
    }
    report["goals"] = validation.compared_with_goals(report)
    assert report["goals"]["first_share"]["met"]
    draw(report, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_small_run_ends_with_all_keys(tmp_path, capsys):
    small = ["--events", "2000", "4000", "--runs", "1", "--share-rows", "8000"]
    figure = tmp_path / "x.svg"
    validation.main([*small, "--cache", str(tmp_path), "--figure", str(figure)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["events"] for one in report["ids"]["int64"]] == [2000, 4000]
    steps = {"await_partition", "validate", "count", "vocabulary", "examples"}
    for run in ("first", "daily"):
        found = report["daily_run"][run]
        assert set(found["seconds"]) == steps
        assert found["share"] == pytest.approx(
            found["seconds"]["validate"] / sum(found["seconds"].values()), abs=1e-3
        )
    assert set(report["goals"]) == set(validation.GOALS)
    assert figure.is_file()
