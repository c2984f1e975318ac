"""The stateless shuffle: a bijection for every size, another one for every seed, well mixed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.longtail.example_shards import SHARD_ROWS, shards_for
from tasks.longtail.permutation import Permutation, shard_of


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 17, 63, 64, 65, 1000, 4097])
def test_every_place_is_taken_once(n):
    places = Permutation(n, 7).places(np.arange(n))
    assert sorted(places.tolist()) == list(range(n))


def test_a_row_has_the_same_place_whoever_asks():
    whole = Permutation(1000, 3).places(np.arange(1000))
    part = Permutation(1000, 3).places(np.arange(300, 500))
    assert part.tolist() == whole[300:500].tolist()


def test_seeds_differ():
    places = {tuple(Permutation(50, seed).places(np.arange(50))) for seed in range(20)}
    assert len(places) == 20


def test_rows_spread_evenly_and_neighbours_part():
    n, shards = 40_000, 16
    places = Permutation(n, 1).places(np.arange(n))
    # Chi-square over source block × target shard: 255 - 31 degrees of freedom and more; the
    # bound is five standard deviations above the mean.
    table = np.histogram2d(np.arange(n), places, bins=shards)[0]
    chi2 = ((table - n / shards**2) ** 2 / (n / shards**2)).sum()
    freedom = (shards - 1) ** 2
    assert abs(chi2 - freedom) < 5 * np.sqrt(2 * freedom)
    correlation = np.corrcoef(places[:-1], places[1:])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(n)


@pytest.mark.parametrize(("rows", "shards"), [(10, 3), (9, 3), (2, 4), (1000, 8), (1, 1)])
def test_shards_are_equal_to_within_one_row(rows, shards):
    shard, slot = shard_of(np.arange(rows), rows, shards)
    sizes = np.bincount(shard, minlength=shards)
    assert sizes.max() - sizes.min() <= 1
    for number in range(shards):
        assert slot[shard == number].tolist() == list(range(sizes[number]))


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(1, 40))
def test_any_log_is_dealt_out_whole_and_evenly(rows, seed, shards):
    places = Permutation(rows, seed).places(np.arange(rows))
    shard, slot = shard_of(places, rows, shards)
    dealt = set(zip(shard.tolist(), slot.tolist(), strict=True))
    sizes = np.bincount(shard, minlength=shards)
    assert len(dealt) == rows
    assert sizes.size == shards
    assert sizes.max() - sizes.min() <= 1
    assert all(
        slot[shard == number].max(initial=-1) + 1 == sizes[number] for number in range(shards)
    )


@given(st.integers(1, 10**10))
def test_shards_suit_common_numbers_of_ranks_and_stay_small(rows):
    shards = shards_for(rows)
    assert shards % 8 == 0
    assert -(-rows // shards) <= SHARD_ROWS
    # Not more of them than needed: with eight fewer they would be too large.
    assert shards == 8 or rows > (shards - 8) * SHARD_ROWS
