"""Counting, vocabularies and examples on workers of other hosts: the bytes of a run without them.

Scheduler, workers and the step's own process are on hosts with addresses and folders of their own,
every connection is encrypted, and the lake is all that they share. What a host that drops out of
the network does to a step is tried here too.
"""

import hashlib
import sys
import time
from contextlib import contextmanager

import pytest

from tasks.errors import ClusterError, LakeError
from tasks.steps import execute
from tests.certificates import make_certificates
from tests.hosts import network
from tests.tasks.longtail.raw_lake import run_steps
from tests.tasks.longtail.step_in_small_parts import small_parts
from tests.tasks.longtail.world import World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.faults,
    pytest.mark.timeout(240),
]
BEFORE = ("await_partition", "validate")
ON_DASK = ("count", "vocabulary", "examples")
DATASETS = ("counts", "vocabulary", "examples")
NOT_VALIDATED = {"data": {"validation": "off"}}
DEAD_AFTER = "12s"
"""How long a silent connection is believed in; Dask takes no less, and 30 s by default."""
PORT = 8786


def content(lake):
    """Digest of every file's bytes, by data set, day and name; attempts have random names."""
    found = {}
    for dataset in DATASETS:
        for path in lake.glob(f"{dataset}/**/*"):
            if path.is_file() and path.name != "manifest.json":
                parts = path.relative_to(lake).parts
                attempt = next(n for n, part in enumerate(parts) if part.startswith("dt=")) + 2
                key = "/".join(parts[:attempt] + parts[attempt + 1 :])
                assert key not in found
                found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The files that a run in this process writes."""
    lake = tmp_path_factory.mktemp("calm")
    with small_parts():
        run_steps(World(lake).spec(**NOT_VALIDATED), *BEFORE, *ON_DASK)
    found = content(lake)
    assert len([key for key in found if key.startswith("counts/user/")]) > 6
    return found


class Cluster:
    """A step's host, a scheduler and two workers, with certificates of their own."""

    def __init__(self, step, scheduler, workers, folder):
        self.step, self.scheduler, self.workers = step, scheduler, workers
        self._folder = folder
        self._certificates = make_certificates(folder / "certificates")
        self._environment = {
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": DEAD_AFTER,
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": DEAD_AFTER,
            "POLARS_MAX_THREADS": "1",
        }
        self.address = f"tls://{scheduler.address}:{PORT}"
        self._serve(scheduler, "dask_scheduler", f"--host={scheduler.address}", f"--port={PORT}")
        for worker in workers:
            self._serve(worker, "dask_worker", self.address, "--nthreads=1", "--memory-limit=0")

    def _serve(self, host, module, *options):
        tls = self._certificates
        files = (f"--tls-ca-file={tls.ca}", f"--tls-cert={tls.cert}", f"--tls-key={tls.key}")
        command = [sys.executable, "-m", f"distributed.cli.{module}", *options, *files]
        host.start(
            [*command, "--no-dashboard"],
            log=self._folder / f"{host.name}.log",
            environment=self._environment,
        )

    def settings(self, **more):
        tls = self._certificates.settings()
        return {"dask": {"scheduler": self.address, "tls": tls, "workers": 1, **more}}

    def command(self, step, spec, pause=0.0):
        module = "tests.tasks.longtail.step_in_small_parts"
        return [sys.executable, "-m", module, str(pause), step, "--run-spec", spec.uri]

    def run(self, step, spec):
        done = self.step.run(self.command(step, spec), environment=self._environment, timeout=120)
        assert done.returncode == 0, done.stdout + self.logs()
        return done.stdout

    def start(self, step, spec, pause):
        return self.step.start(
            self.command(step, spec, pause),
            log=self._folder / "step.log",
            environment=self._environment,
        )

    def logs(self):
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))


@contextmanager
def cluster(tmp_path, *, lake_of_workers=True):
    lake, folder = tmp_path / "lake", tmp_path / "cluster"
    certificates = folder / "certificates"
    for path in (lake, certificates):
        path.mkdir(parents=True)
    with network() as net:
        step = net.host(shared=[lake, certificates])
        scheduler = net.host(shared=[certificates])
        seen = [lake, certificates] if lake_of_workers else [certificates]
        workers = [net.host(shared=seen) for _ in range(2)]
        yield Cluster(step, scheduler, workers, folder)


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def saved(lake, settings):
    """A run whose first steps, which do not use the cluster, are done."""
    spec = World(lake).spec(**NOT_VALIDATED, **settings)
    spec.save()
    for step in BEFORE:
        execute(spec, step)
    return spec


def test_workers_on_other_hosts_write_the_same_bytes(tmp_path, calm):
    lake = tmp_path / "lake"
    with cluster(tmp_path) as remote:
        spec = saved(lake, remote.settings())
        for step in ON_DASK:
            assert "tasks run on the Dask cluster" in remote.run(step, spec)
    assert content(lake) == calm
    assert not list(lake.glob("scratch/*"))


def test_a_worker_whose_host_drops_out_changes_no_byte(tmp_path, calm):
    """The lost worker goes on writing to the lake, as one would whose lake is elsewhere."""
    lake = tmp_path / "lake"
    with cluster(tmp_path) as remote:
        spec = saved(lake, remote.settings())
        process = remote.start("count", spec, pause=1.0)
        wait_for(lambda: list(lake.glob("scratch/*/*.arrow")))
        remote.workers[0].cut_off()
        assert process.wait(timeout=120) == 0, remote.logs()
        for step in ON_DASK[1:]:
            remote.run(step, spec)
        assert "Remove worker" in remote.logs()
    assert content(lake) == calm


def test_a_scheduler_whose_host_drops_out_ends_the_step(tmp_path):
    lake = tmp_path / "lake"
    with cluster(tmp_path) as remote:
        spec = saved(lake, remote.settings())
        process = remote.start("count", spec, pause=5.0)
        wait_for(lambda: "tasks run on the Dask cluster" in remote.logs())
        remote.scheduler.cut_off()
        started = time.monotonic()
        assert process.wait(timeout=120) == ClusterError.exit_code, remote.logs()
        assert time.monotonic() - started < 60
        assert "the connection to the Dask scheduler was lost" in remote.logs()
    assert not list(lake.glob("counts/**/manifest.json"))


def test_workers_without_the_lake_get_no_work(tmp_path):
    lake = tmp_path / "lake"
    with cluster(tmp_path, lake_of_workers=False) as remote:
        spec = saved(lake, remote.settings())
        done = remote.step.run(remote.command("count", spec))
        assert done.returncode == LakeError.exit_code
        assert "2 of 2 Dask workers do not see the lake" in done.stdout
    assert not (lake / "counts").exists()
