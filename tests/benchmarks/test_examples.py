"""The examples benchmark runs, compares the files it timed, and prints one JSON object last."""

import json

import pytest

from benchmarks import examples
from benchmarks.examples_figure import draw

SPEED = {"seconds": 1.0, "peak_mib": 10, "ids_per_second": 10**6}


def test_the_figure_shows_what_was_measured(tmp_path):
    speeds = dict.fromkeys(("codes", "join", "join_codes"), SPEED)
    report = {
        "events": 10**6,
        "history": 50,
        "tailtower": SPEED,
        "polars": SPEED,
        "encode": {"integers": speeds, "text": speeds},
    }
    draw(report, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_small_run_ends_with_all_keys_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    figure = tmp_path / "figure.svg"
    small = ["--events", "16k", "--users", "2k", "--items", "500", "--runs", "1"]
    examples.main([*small, "--figure", str(figure)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["events"] == 14_000
    for key in ("events_per_second", "ratio_vs_polars", "encode_ratio_vs_polars_join"):
        assert report[key] > 0
    assert set(report["encode"]) == {"integers", "text"}
    assert figure.exists()
    assert not list(tmp_path.glob("tailtower-bench-*"))
