"""Where tasks run: a cluster that fails gives one clear error, in bounded time."""

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from pydantic import ValidationError

from tasks.config import DaskSettings, DaskTlsSettings
from tasks.errors import ClusterError, ConfigError, DataError, LakeError
from tasks.lake import Lake
from tasks.longtail import cluster
from tasks.longtail.cluster import open_runner
from tests.certificates import make_certificates

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
IMPATIENT = 2.0


@pytest.fixture
def lake(tmp_path):
    return Lake(str(tmp_path / "lake"))


@contextmanager
def remote_cluster(workers, **options):
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        **options,
    ) as remote:
        yield remote


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


def test_small_inputs_stay_in_this_process(lake):
    with open_runner(DaskSettings(), 10, lake) as runner:
        assert runner.map("double", double, [1, 2, 3]) == [2, 4, 6]
        assert runner.map("process", process, [0]) == [os.getpid()]


def test_large_inputs_go_to_workers_and_errors_come_back_whole(lake):
    with open_runner(DaskSettings(workers=2), cluster.SMALL_BYTES + 1, lake) as runner:
        assert runner.map("double", double, list(range(20))) == list(range(0, 40, 2))
        assert os.getpid() not in runner.map("process", process, [0, 1])
        with pytest.raises(DataError) as caught:
            runner.map("refuse", refuse, [1, 2, 3, 4])
        assert (caught.value.where, caught.value.fix) == ("item 3", "leave it out")


@pytest.mark.faults
def test_a_task_that_kills_its_workers_is_a_cluster_error(lake):
    with (
        pytest.raises(ClusterError, match="could not finish 'die'"),
        open_runner(DaskSettings(workers=1), cluster.SMALL_BYTES + 1, lake) as runner,
    ):
        runner.map("die", die, [0])


@pytest.mark.faults
def test_a_scheduler_that_is_not_there_is_a_cluster_error(lake):
    settings = DaskSettings(scheduler="tcp://127.0.0.1:9", workers_timeout_seconds=IMPATIENT)
    with (
        pytest.raises(ClusterError, match="cannot be reached"),
        open_runner(settings, 1, lake),
    ):
        pass


@pytest.mark.faults
def test_a_cluster_without_workers_is_a_cluster_error(lake):
    with remote_cluster(0) as empty:
        settings = DaskSettings(
            scheduler=empty.scheduler_address, workers_timeout_seconds=IMPATIENT
        )
        with (
            pytest.raises(ClusterError, match="no workers after 2 s"),
            open_runner(settings, 1, lake),
        ):
            pass


@pytest.mark.faults
def test_a_cluster_that_loses_its_workers_is_a_cluster_error(monkeypatch, lake):
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 1)
    with remote_cluster(1) as remote:
        settings = DaskSettings(
            scheduler=remote.scheduler_address, workers_timeout_seconds=IMPATIENT
        )
        threading.Timer(3.0, remote.scale, [0]).start()
        with (
            pytest.raises(ClusterError, match="lost all its workers during 'leave'"),
            open_runner(settings, 1, lake) as runner,
        ):
            runner.map("leave", time.sleep, [60])


@pytest.mark.faults
def test_workers_that_do_not_see_the_lake_get_no_work(monkeypatch, lake):
    with remote_cluster(1) as remote:
        settings = DaskSettings(scheduler=remote.scheduler_address)
        monkeypatch.setattr(Lake, "write_text", lambda *_: None)
        with (
            pytest.raises(LakeError, match="1 of 1 Dask workers do not see the lake"),
            open_runner(settings, 1, lake),
        ):
            pass


@pytest.mark.parametrize(
    "address",
    [
        "tcp://10.0.0.7:8786",
        "10.0.0.7:8786",
        "tcp://scheduler:8786",
        "scheduler:8786",
        "ucx://10.0.0.7:8786",
        "ws://10.0.0.7:8786",
        "tcp://[2001:db8::1]:8786",
        "tcp://127.0.0.1.example.org:8786",
        "tcp://localhost@10.0.0.7:8786",
        "tcp://0.0.0.0:8786",
    ],
)
def test_an_unencrypted_scheduler_elsewhere_is_refused_unless_it_is_allowed(address):
    with pytest.raises(ValidationError, match="not encrypted"):
        DaskSettings(scheduler=address)
    assert DaskSettings(scheduler=address, allow_unencrypted=True).scheduler == address


@pytest.mark.parametrize(
    "address",
    [
        "tls://10.0.0.7:8786",
        "tls://scheduler:8786",
        "tcp://127.0.0.1:8786",
        "127.0.0.2:8786",
        "tcp://[::1]:8786",
        "localhost:8786",
    ],
)
def test_encrypted_and_own_schedulers_are_accepted(address):
    assert DaskSettings(scheduler=address).scheduler == address


def test_a_cluster_with_certificates_serves_only_who_shows_one(tmp_path, lake):
    from distributed.security import Security

    ours, theirs = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "theirs")
    roles = {f"tls_{role}_cert": ours.cert for role in ("scheduler", "worker", "client")}
    roles |= {f"tls_{role}_key": ours.key for role in ("scheduler", "worker", "client")}
    security = Security(tls_ca_file=ours.ca, require_encryption=True, **roles)
    with remote_cluster(1, protocol="tls", security=security) as remote:
        address = remote.scheduler_address
        assert address.startswith("tls://")
        settings = DaskSettings(scheduler=address, tls=ours.settings())
        with open_runner(settings, 1, lake) as runner:
            assert runner.map("double", double, [1, 2]) == [2, 4]
        strangers = DaskSettings(
            scheduler=address, tls=theirs.settings(), workers_timeout_seconds=IMPATIENT
        )
        with (
            pytest.raises(ClusterError, match="cannot be reached"),
            open_runner(strangers, 1, lake),
        ):
            pass


def test_certificates_that_cannot_be_used_are_a_mistake_in_the_configuration(tmp_path, lake):
    scheduler = "tls://127.0.0.1:9"
    with (
        pytest.raises(ConfigError, match="no certificates"),
        open_runner(DaskSettings(scheduler=scheduler), 1, lake),
    ):
        pass
    ours, theirs = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "theirs")
    mixed = replace(ours, key=theirs.key)
    without_authority = replace(ours, ca=str(tmp_path / "absent.pem"))
    for wrong in (mixed, without_authority):
        settings = DaskSettings(scheduler=scheduler, tls=wrong.settings())
        with (
            pytest.raises(ConfigError, match="cannot be used"),
            open_runner(settings, 1, lake),
        ):
            pass
    with pytest.raises(ValidationError, match="ca, cert and key together"):
        DaskTlsSettings(ca=ours.ca)
