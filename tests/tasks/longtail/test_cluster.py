"""Where tasks run: a cluster that fails gives one clear error, in bounded time."""

import os
import threading
import time

import pytest

from tasks.config import DaskSettings
from tasks.errors import ClusterError, DataError
from tasks.longtail import cluster
from tasks.longtail.cluster import open_runner

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def double(number):
    return 2 * number


def process(_):
    return os.getpid()


def refuse(number):
    if number == 3:
        raise DataError("three is not liked", where="item 3", fix="leave it out")
    return number


def die(_):
    os._exit(1)


def test_small_inputs_stay_in_this_process():
    with open_runner(DaskSettings(), 10) as runner:
        assert runner.map("double", double, [1, 2, 3]) == [2, 4, 6]
        assert runner.map("process", process, [0]) == [os.getpid()]


def test_large_inputs_go_to_workers_and_errors_come_back_whole():
    with open_runner(DaskSettings(workers=2), cluster.SMALL_BYTES + 1) as runner:
        assert runner.map("double", double, list(range(20))) == list(range(0, 40, 2))
        assert os.getpid() not in runner.map("process", process, [0, 1])
        with pytest.raises(DataError) as caught:
            runner.map("refuse", refuse, [1, 2, 3, 4])
        assert (caught.value.where, caught.value.fix) == ("item 3", "leave it out")


@pytest.mark.faults
def test_a_task_that_kills_its_workers_is_a_cluster_error():
    with (
        pytest.raises(ClusterError, match="could not finish 'die'"),
        open_runner(DaskSettings(workers=1), cluster.SMALL_BYTES + 1) as runner,
    ):
        runner.map("die", die, [0])


@pytest.mark.faults
def test_a_scheduler_that_is_not_there_is_a_cluster_error(monkeypatch):
    monkeypatch.setattr(cluster, "_WORKERS_TIMEOUT_SECONDS", 2)
    settings = DaskSettings(scheduler="tcp://127.0.0.1:9")
    with pytest.raises(ClusterError, match="cannot be reached"), open_runner(settings, 1):
        pass


@pytest.mark.faults
def test_a_cluster_without_workers_is_a_cluster_error(monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr(cluster, "_WORKERS_TIMEOUT_SECONDS", 2)
    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty:
        settings = DaskSettings(scheduler=empty.scheduler_address)
        with pytest.raises(ClusterError, match="no workers"), open_runner(settings, 1):
            pass


@pytest.mark.faults
def test_a_cluster_that_loses_its_workers_is_a_cluster_error(monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr(cluster, "_WORKERS_TIMEOUT_SECONDS", 2)
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 1)
    with LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as remote:
        settings = DaskSettings(scheduler=remote.scheduler_address)
        threading.Timer(3.0, remote.scale, [0]).start()
        with (
            pytest.raises(ClusterError, match="lost all its workers during 'leave'"),
            open_runner(settings, 1) as runner,
        ):
            runner.map("leave", time.sleep, [60])
