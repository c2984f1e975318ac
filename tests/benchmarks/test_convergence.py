"""The arithmetic of the convergence benchmark: where a curve crosses the target, and what a
contender that never does counts for."""

import pytest

from benchmarks.convergence import summarise, time_to

CURVE = [(10.0, 0.05), (20.0, 0.10), (30.0, 0.12)]


def test_time_is_read_between_the_points():
    assert time_to(CURVE, 0.05) == pytest.approx(10.0)
    assert time_to(CURVE, 0.025) == pytest.approx(5.0)
    assert time_to(CURVE, 0.11) == pytest.approx(25.0)
    assert time_to(CURVE, 0.2) is None


def test_ratio_is_the_median_over_seeds_and_watching_is_not_reaching():
    slow = [[(40.0, 0.05), (80.0, 0.10)], [(40.0, 0.01), (90.0, 0.02)], [(50.0, 0.2)]]
    report = summarise({"ours": [CURVE] * 3, "traditional": slow}, 0.1)
    # 20 / 80, 20 / 90 (not reached), 20 / 25.
    assert report["time_to_quality_ratio"] == pytest.approx(0.25, abs=1e-3)
    assert report["contenders"]["traditional"]["reached"] == 2
    assert report["contenders"]["ours"]["seconds"] == 20.0
