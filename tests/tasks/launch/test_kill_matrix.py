"""Whatever is killed or cut off, a training over two hosts ends with the same weights.

Every cell checks that the training goes on or resumes in time, that no step before the last
complete checkpoint is taken again, that each row of an epoch counts exactly once, that the weights
are those of an undisturbed training, and that no process is left on any host.
"""

import dataclasses
import itertools
import os
import signal
import time

import pytest

from tasks.launch import JobStatus
from tasks.launch.attempts import SILENT_SECONDS
from tests.reliability import Outcome
from tests.tasks.launch.dask_cluster import wait_for
from tests.tasks.launch.farm import CHECKPOINT_EVERY, SHAPE, farm, farthest

pytestmark = [
    *(pytest.mark.slow, pytest.mark.faults, pytest.mark.integration),
    pytest.mark.timeout(400),
]
PACE = 0.3
AFTER = 12
"""Step in which the fault comes: some checkpoints are there, and many steps are left."""
RESUMES_WITHIN = 60.0
"""Seconds after the loss was noticed."""
CLOSE = 1e-4
"""Another number of ranks adds up in another order."""
TWO = dataclasses.replace(SHAPE, min_nodes=2)
"""Waits for both nodes at the start; ranges are tried where a node is lost for good."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with farm(tmp_path_factory.mktemp("farm"), workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def calm(hosts):
    """Weights of a training that nothing happens to."""
    job = hosts.submit("calm", TWO, pace=0.0)
    job.finish()
    assert [world.size for world in job.worlds()] == [2]
    return job.weights()


@pytest.fixture
def start(hosts, calm, request):
    """Submits a job and waits until it is in the middle of its first epoch."""

    def submit(shape=SHAPE, ranks=2):
        job = hosts.submit(request.node.name, shape, PACE)
        wait_for(lambda: job.worlds() and job.worlds()[-1].size == ranks, f"{ranks} ranks", 120)
        job.wait_until_trained_past(AFTER)
        return job

    return submit


def ended(cell, job, calm, fault, limit=0.0, pause=None):
    """Checks the end of a job and records what was seen.

    Args:
        cell: Name of the cell.
        job: The job.
        calm: Weights of an undisturbed training.
        fault: When it happened, and the complete checkpoints of that moment.
        limit: Seconds until it is noticed at the latest.
        pause: Seconds until training went on, when the same ranks did.
    """
    when, kept = fault
    job.finish()
    history = job.worlds()
    redone = 0
    for before, after in itertools.pairwise(history):
        assert after.first >= kept[-1]
        redone += max(0, before.last - after.first)
    if pause is None:
        after = next(world for world in history if world.began > when)
        pause = after.began - when
    assert pause <= limit + RESUMES_WITHIN
    difference = farthest(job.weights(), calm)
    assert difference < CLOSE
    sizes = tuple(world.size for world in history)
    Outcome(cell, sizes, limit, pause, redone, difference).record()
    return sizes


def moment(job):
    """Now, and the complete checkpoints."""
    return time.time(), job.checkpoints()


def test_a_killed_rank(hosts, start, calm):
    job = start()
    fault = moment(job)
    job.rank_on(hosts.hosts[1]).kill()
    assert ended("rank", job, calm, fault)[-1] == 2


def test_a_killed_agent(hosts, start, calm):
    job = start()
    rank = job.rank_on(hosts.hosts[0])
    fault = moment(job)
    job.agent_on(hosts.hosts[0]).kill()
    wait_for(lambda: not rank.is_running(), "the end of its rank", 20)
    assert ended("agent", job, calm, fault)[-1] == 2


def test_a_host_cut_off(hosts, start, calm):
    """Its ranks live on and train no more; the other host goes on alone."""
    job = start()
    lost = hosts.hosts[1]
    fault = moment(job)
    lost.cut_off()
    try:
        sizes = ended("host", job, calm, fault, limit=SHAPE.peer_timeout_seconds)
    finally:
        lost.reconnect()
    assert sizes == (2, 1)
    hosts.workers_again()


def test_a_killed_machine(hosts, start, calm):
    job = start()
    lost = hosts.hosts[1]
    agent = job.agent_on(lost)
    guard = agent.parent()
    fault = moment(job)
    hosts.kill_worker(lost)
    for process in (guard, *agent.children(), agent):
        process.kill()
    assert ended("machine", job, calm, fault) == (2, 1)
    hosts.workers_again()


def test_a_killed_dask_worker(hosts, start, calm):
    job = start()
    fault = moment(job)
    last = job.worlds()[-1].last
    host = hosts.hosts[0]
    hosts.kill_worker(host)
    wait_for(lambda: job.worlds()[-1].last > last + 2, "further steps", 20)
    assert ended("worker", job, calm, fault, pause=0.0) == (2,)
    hosts.start_worker(host)


def test_a_killed_scheduler(hosts, start, calm):
    job = start()
    fault = moment(job)
    hosts.cluster.kill_scheduler()
    assert ended("scheduler", job, calm, fault, pause=0.0) == (2,)
    hosts.cluster.start_scheduler()
    hosts.workers_again()


def test_a_killed_supervisor(hosts, start, calm):
    """The machine that submitted the job fails: the nodes end, and the next attempt resumes."""
    job = start()
    fault = moment(job)
    for process in job.processes():
        if "dask_supervisor" in " ".join(process.cmdline()):
            process.kill()
    wait_for(lambda: job.status() is JobStatus.FAILED, "the loss", 60)
    hosts.submit(job.folder.name, SHAPE, PACE)
    # Another machine learns of it by silence.
    assert ended("supervisor", job, calm, fault, limit=SILENT_SECONDS)[-1] == 2


def test_a_host_that_joins_later(hosts, start, calm):
    second = hosts.hosts[1]
    hosts.kill_worker(second)
    job = start(ranks=1)
    fault = moment(job)
    hosts.start_worker(second)
    sizes = ended("late", job, calm, fault)
    assert sizes == (1, 2)


def test_a_host_that_stands_still(hosts, start, calm):
    job = start()
    fault = moment(job)
    last = job.worlds()[-1].last
    rank = job.rank_on(hosts.hosts[1])
    still = SHAPE.peer_timeout_seconds / 3
    rank.send_signal(signal.SIGSTOP)
    try:
        time.sleep(still)
        assert job.worlds()[-1].last <= last + 2
    finally:
        rank.send_signal(signal.SIGCONT)
    assert ended("slow", job, calm, fault, pause=still) == (2,)


def test_a_cancelled_job(hosts, start, calm):
    """Nothing is left anywhere, a checkpoint is kept, and a new attempt goes on from there."""
    job = start()
    job.launcher.cancel(job.folder)
    assert job.processes() == []
    assert job.status() is JobStatus.FAILED
    fault = moment(job)
    last = job.worlds()[-1].last
    assert fault[1][-1] >= last - CHECKPOINT_EVERY
    hosts.submit(job.folder.name, SHAPE, PACE)
    assert ended("cancel", job, calm, fault)[-1] == 2


def test_this_process_is_on_none_of_the_hosts(hosts):
    assert hosts.submitter.run(["hostname"]).stdout.strip() != os.uname().nodename
