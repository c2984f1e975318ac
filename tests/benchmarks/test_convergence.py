"""The arithmetic of the convergence benchmark: where a curve crosses the target, when a contender
is given up, and what one that never gets there counts for."""

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.convergence import is_over, summarise, time_to
from benchmarks.convergence_figure import draw

# Processor seconds, seconds, recall.
CURVE = [(10.0, 99.0, 0.05), (20.0, 99.0, 0.10), (30.0, 99.0, 0.12)]
SLOW = [
    [(40.0, 99.0, 0.05), (80.0, 99.0, 0.10)],
    [(40.0, 99.0, 0.01), (90.0, 99.0, 0.02)],
    [(50.0, 99.0, 0.2)],
]


def test_time_is_read_between_the_points():
    assert time_to(CURVE, 0.05) == pytest.approx(10.0)
    assert time_to(CURVE, 0.025) == pytest.approx(5.0)
    assert time_to(CURVE, 0.11) == pytest.approx(25.0)
    assert time_to(CURVE, 0.2) is None


def test_ratio_is_the_median_over_seeds_and_watching_is_not_reaching():
    report = summarise({"ours": [CURVE] * 3, "traditional": SLOW}, 0.1)
    # 20 / 80, 20 / 90 (not reached), 20 / 25.
    assert report["time_to_quality_ratio"] == pytest.approx(0.25, abs=1e-3)
    assert report["contenders"]["traditional"]["reached"] == 2
    assert report["contenders"]["traditional"]["bound"]
    assert report["contenders"]["ours"]["cpu_seconds"] == 20.0


def test_a_contender_of_fewer_seeds_is_compared_at_those():
    report = summarise({"ours": [CURVE, SLOW[0]], "without logQ": [SLOW[0]]}, 0.1)
    assert report["contenders"]["without logQ"]["ratios"] == [0.25]
    assert not report["contenders"]["without logQ"]["bound"]


def test_there_is_no_ratio_when_the_recipe_does_not_get_there():
    report = summarise({"ours": [CURVE], "traditional": [SLOW[2]]}, 0.15)
    assert "time_to_quality_ratio" not in report


@pytest.mark.parametrize(
    ("point", "limit", "over"),
    [
        ((10.0, 0.0, 0.2), None, True),  # reached
        ((90.0, 0.0, 0.1), None, False),  # nobody has reached it
        ((59.0, 0.0, 0.1), 20.0, False),
        ((60.0, 0.0, 0.1), 20.0, True),  # three times as long
    ],
)
def test_a_contender_is_watched_for_so_many_times_the_recipes_time(point, limit, over):
    assert is_over(point, 0.15, limit, patience=3.0) is over


def test_the_figure_names_the_target_and_the_contenders(tmp_path):
    draw(summarise({"ours": [CURVE] * 2, "traditional": SLOW[:2]}, 0.1), tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for label in ("target 0.1000", "ours", "traditional"):
        assert f"<!-- {label} -->" in text
