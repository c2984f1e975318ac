"""Four hosts train as one does: the same weights, every row once, and traffic where it belongs."""

import dataclasses

import pytest

from tests.tasks.launch.farm import SHAPE, farm, farthest

pytestmark = [
    *(pytest.mark.slow, pytest.mark.integration),
    pytest.mark.timeout(600),
]


def test_four_hosts_end_with_the_weights_of_one(tmp_path):
    with farm(tmp_path, workers=4) as hosts:
        four = dataclasses.replace(SHAPE, min_nodes=4, max_nodes=4, peer_timeout_seconds=60)
        job = hosts.submit("four", four, pace=0.0)
        job.finish(300)
        assert [world.size for world in job.worlds()] == [4]
        one = dataclasses.replace(SHAPE, min_nodes=1, max_nodes=1)
        alone = hosts.submit("one", one, pace=0.0)
        alone.finish()
        assert [world.size for world in alone.worlds()] == [1]
        assert farthest(job.weights(), alone.weights()) < 1e-4
