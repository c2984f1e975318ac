"""Four ranks on four hosts, or on two, train as one does: the same weights, every row once."""

import dataclasses

import pytest

from tests.tasks.launch.farm import SHAPE, farm, farthest

pytestmark = [
    *(pytest.mark.slow, pytest.mark.integration),
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize(("nodes", "ranks"), [(4, 1), (2, 2)])
def test_four_ranks_end_with_the_weights_of_one(tmp_path, nodes, ranks):
    with farm(tmp_path, workers=nodes) as hosts:
        four = dataclasses.replace(
            SHAPE,
            ranks_per_node=ranks,
            min_nodes=nodes,
            max_nodes=nodes,
            peer_timeout_seconds=60,
        )
        job = hosts.submit("four", four, pace=0.0)
        job.finish(300)
        assert [world.size for world in job.worlds()] == [4]
        one = dataclasses.replace(SHAPE, min_nodes=1, max_nodes=1)
        alone = hosts.submit("one", one, pace=0.0)
        alone.finish()
        assert [world.size for world in alone.worlds()] == [1]
        assert farthest(job.weights(), alone.weights()) < 1e-4
