"""A job on Dask workers outlives caller, worker and scheduler, and leaves no process behind."""

import json
import os
import signal

import psutil
import pytest

from tasks.config import DaskSettings
from tasks.errors import ConfigError
from tasks.launch import JobShape, JobStatus
from tasks.launch.dask import DaskLauncher
from tasks.launch.processes import NODE
from tasks.launch.supervised import job_processes
from tests.tasks.launch.dask_cluster import ThisMachine, cluster_here, wait_for
from tests.tasks.local_stack.helpers import free_port

pytestmark = [pytest.mark.faults, pytest.mark.integration]
WORKER = "tests.tasks.launch.dummy_worker"
TWO = JobShape(min_nodes=2, max_nodes=2, join_seconds=1, peer_timeout_seconds=10)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with cluster_here(tmp_path_factory.mktemp("cluster"), free_port(), workers=2) as made:
        yield made


@pytest.fixture
def launcher(cluster):
    return DaskLauncher(cluster.settings, WORKER)


@pytest.fixture
def job(tmp_path, launcher):
    def make(**what):
        (tmp_path / "job.json").write_text(json.dumps(what))
        return tmp_path

    yield make
    launcher.cancel(tmp_path)
    assert processes_of(tmp_path) == []


def processes_of(folder):
    """Every process on this machine that belongs to the job: supervisor, agents and ranks."""
    found = list(job_processes(folder))
    for process in psutil.process_iter():
        try:
            of_node = process.environ().get(NODE, "").startswith(f"{folder}/")
            named = str(folder) in " ".join(process.cmdline())
            if (of_node or named) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return sorted({*found} - {os.getpid()})


def ranks(folder):
    return sorted(path.name for path in folder.glob("rank-*"))


def logs(launcher, folder):
    return "\n".join(path.read_text() for path in launcher.logs(folder))


def agents(folder):
    """First processes of the torch elastic agents, by node."""
    found = {}
    for pid in processes_of(folder):
        process = psutil.Process(pid)
        if "torch.distributed.run" in process.cmdline():
            found[process.environ()[NODE]] = process
    return found


def test_the_end_of_a_job_is_known_to_every_caller_and_nothing_is_left(job, cluster, launcher):
    folder = job()
    assert launcher.status(folder) is JobStatus.ABSENT
    for _ in range(2):
        launcher.submit(folder, TWO.on_one_node())
    assert DaskLauncher(cluster.settings).status(folder) is JobStatus.RUNNING
    wait_for(lambda: launcher.status(folder) is not JobStatus.RUNNING, "the end")
    assert launcher.status(folder) is JobStatus.SUCCEEDED, logs(launcher, folder)
    assert len(ranks(folder)) == 1
    assert processes_of(folder) == []


@pytest.mark.slow
def test_cancelling_ends_every_process_and_the_next_attempt_has_the_next_number(job, launcher):
    folder = job(hold=True)
    launcher.submit(folder, TWO)
    wait_for(lambda: len(ranks(folder)) == 2, "both ranks")
    assert len(agents(folder)) == 2
    launcher.cancel(folder)
    assert processes_of(folder) == []
    assert launcher.status(folder) is JobStatus.FAILED
    (folder / "go").touch()
    launcher.submit(folder, TWO)
    wait_for(lambda: launcher.status(folder) is JobStatus.SUCCEEDED, "the end")
    assert [path.name for path in (folder / "attempts").iterdir()] == ["0001", "0002"]
    fence = json.loads((folder / "checkpoints.fence.json").read_text())
    assert fence["attempt"] == 2


@pytest.mark.slow
def test_a_failing_rank_fails_the_job_and_ends_it_everywhere(job, launcher):
    folder = job(exit=3)
    launcher.submit(folder, TWO)
    wait_for(lambda: launcher.status(folder) is JobStatus.FAILED, "the end")
    assert processes_of(folder) == []


@pytest.mark.slow
def test_a_killed_agent_takes_its_ranks_with_it_and_is_replaced(job, launcher):
    folder = job(hold=True)
    launcher.submit(folder, TWO)
    wait_for(lambda: len(ranks(folder)) == 2, "both ranks")
    agent = next(iter(agents(folder).values()))
    (rank,) = agent.children()
    agent.kill()
    wait_for(lambda: not rank.is_running(), "the end of its rank", 20)
    # Both nodes get new ranks, as they meet again.
    wait_for(lambda: len(ranks(folder)) == 4, "new ranks")
    (folder / "go").touch()
    wait_for(lambda: launcher.status(folder) is JobStatus.SUCCEEDED, "the end")


@pytest.mark.slow
def test_a_killed_supervisor_ends_the_job_everywhere(job, launcher):
    """Nobody looks after the nodes any more: they end by themselves, without being told."""
    folder = job(hold=True)
    launcher.submit(folder, TWO)
    wait_for(lambda: len(ranks(folder)) == 2, "both ranks")
    for pid in job_processes(folder):
        os.kill(pid, signal.SIGKILL)
    assert launcher.status(folder) is JobStatus.FAILED
    wait_for(lambda: processes_of(folder) == [], "the end of the nodes")


@pytest.mark.slow
def test_the_job_goes_on_without_worker_and_scheduler_and_is_cancelled_all_the_same(tmp_path):
    machine = ThisMachine()
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"hold": True}))
    with cluster_here(tmp_path / "cluster", free_port(), workers=0) as cluster:
        workers = [cluster.start_worker(machine) for _ in range(2)]
        launcher = DaskLauncher(cluster.settings, WORKER)
        launcher.submit(folder, TWO)
        wait_for(lambda: len(ranks(folder)) == 2, "both ranks")
        running = agents(folder)
        for worker in workers:
            machine.kill(worker)
        machine.kill(cluster.scheduler)
        with pytest.raises(AssertionError, match="not in 5 s"):
            wait_for(lambda: launcher.status(folder) is not JobStatus.RUNNING, "", 5)
        assert agents(folder) == running
        launcher.cancel(folder)
    assert processes_of(folder) == []


def test_a_scheduler_must_be_named():
    with pytest.raises(ConfigError, match="scheduler"):
        DaskLauncher(DaskSettings())
