"""Protects the distribution of sampled negatives: the alias table encodes the weights exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from models.alias_table import AliasTable, build_alias_table
from models.errors import ExamplesError
from models.negatives import AliasSampler


def _probabilities(table: AliasTable) -> np.ndarray:
    """What the table draws: each slot keeps its part and gives the rest to its alias."""
    n = len(table.prob)
    kept = table.prob.astype(np.float64)
    result = kept.copy()
    np.add.at(result, table.alias, 1.0 - kept)
    return result / n


@settings(deadline=None)
@given(
    hnp.arrays(
        np.float64, st.integers(1, 200), elements=st.floats(0, 1e6, allow_subnormal=False)
    ).filter(lambda w: w.sum() > 1e-3)
)
def test_table_encodes_the_weights(weights: np.ndarray) -> None:
    table = build_alias_table(weights)
    expected = weights / weights.sum()
    np.testing.assert_allclose(_probabilities(table), expected, atol=1e-7)
    np.testing.assert_allclose(np.exp(table.log_q), expected, rtol=1e-5, atol=1e-12)


def test_by_hand() -> None:
    # Mean 1: the last slot gives 0.5 to the first and 0.5 to the second.
    table = build_alias_table([0.5, 0.5, 2.0])
    assert table.prob.tolist() == [0.5, 0.5, 1.0]
    assert table.alias.tolist() == [2, 2, 2]


def test_zipf_weights_of_a_large_corpus() -> None:
    weights = 1.0 / np.arange(1, 100_001)
    np.testing.assert_allclose(
        _probabilities(build_alias_table(weights)), weights / weights.sum(), atol=1e-9
    )


def test_items_of_weight_zero_are_never_drawn() -> None:
    sampler = AliasSampler(build_alias_table([0.0, 3.0, 0.0, 1.0]))
    drawn = sampler.sample(20_000, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=4)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert sampler.log_q[0] == -torch.inf
    # Binomial(20 000, 3/4) has a standard deviation of 61.
    assert abs(int(counts[1]) - 15_000) < 250


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0], [1.0, float("nan")]])
def test_refuses_what_is_no_distribution(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be"):
        build_alias_table(weights)


def test_file_of_another_corpus_is_refused(tmp_path: Path) -> None:
    file = str(tmp_path / "uniform.parquet")
    pq.write_table(build_alias_table(np.ones(5)).to_arrow(), file)
    assert AliasSampler.from_parquet(file, 5).log_q.tolist() == pytest.approx([np.log(0.2)] * 5)
    with pytest.raises(ExamplesError, match="5 rows in the table of negatives for 6 items"):
        AliasSampler.from_parquet(file, 6)
