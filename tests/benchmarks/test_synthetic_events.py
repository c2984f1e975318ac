"""The logs of the benchmarks follow the law they claim; otherwise every figure is about another."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq

from benchmarks.synthetic_events import EventShape, hashed, make_events, zipf_ranks


def test_ranks_follow_the_bounded_law():
    ranks, size, exponent = 50, 200_000, 1.05
    drawn = zipf_ranks(np.random.default_rng(3), size, ranks, exponent)
    assert drawn.size == size
    weights = np.arange(1, ranks + 1, dtype=np.float64) ** -exponent
    expected = size * weights / weights.sum()
    found = np.bincount(drawn, minlength=ranks + 1)[1:]
    assert found.size == ranks
    # Chi-square with 49 degrees of freedom: above 94 once in ten thousand draws.
    assert ((found - expected) ** 2 / expected).sum() < 94


def test_hashed_ids_never_merge_ranks():
    ids = hashed(np.arange(100_000, dtype=np.int64), 0)
    assert ids.dtype == np.int64
    assert np.unique(ids).size == 100_000
    # SplitMix64's finalizer, worked out with Python's integers.
    x = 12345
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    assert int(ids[12345]) % 2**64 == x ^ (x >> 31)


def test_a_log_is_made_once_and_another_seed_is_another_log(tmp_path):
    shape = EventShape(events=1001, files=2, users=50, items=20)
    paths = make_events(tmp_path, shape)
    assert sum(pq.read_metadata(path).num_rows for path in paths) == 1001
    times = [path.stat().st_mtime_ns for path in paths]
    assert make_events(tmp_path, shape) == paths
    assert [path.stat().st_mtime_ns for path in paths] == times
    other = make_events(tmp_path, replace(shape, seed=2))
    assert pq.read_table(other[0]) != pq.read_table(paths[0])
