"""Several hosts that train: a scheduler, a machine that submits jobs, and machines with a worker.

Each has network, processes and temporary folders of its own; one shared folder holds jobs and data.
Dask talks TLS, and the ranks meet on the hosts' one interface.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

from models.config import TrainJob
from tasks.launch import JobShape, JobStatus
from tasks.launch.attempts import newest
from tasks.launch.dask import DaskLauncher
from tasks.launch.processes import NODE
from tests.hosts import Host, Network, network
from tests.models.worlds import World as Data
from tests.models.worlds import make_job, make_world
from tests.tasks.launch.dask_cluster import PORT, Cluster, wait_for
from tests.tasks.launch.history import World, rows_that_count, worlds
from tests.tasks.launch.recording_worker import PACE

SHAPE = JobShape(
    threads=1, max_restarts=6, min_nodes=1, max_nodes=2, peer_timeout_seconds=20, join_seconds=6
)
CHECKPOINT_EVERY = 5


class Farm:
    """Hosts, a cluster on them, and data to train on; `farm` makes it."""

    def __init__(self, net: Network, folder: Path, workers: int) -> None:
        self._net = net
        self.folder = folder
        self.data: Data = make_world(folder / "data", num_users=150)
        self.submitter = net.host(shared=[folder])
        (folder / "cluster").mkdir()
        self.cluster = Cluster(folder / "cluster", net.host(shared=[folder]), PORT, encrypted=True)
        self.hosts: list[Host] = []
        self._workers: dict[Host, subprocess.Popen[bytes]] = {}
        for _ in range(workers):
            self.add_host()
            self.start_worker(self.hosts[-1])

    def add_host(self) -> Host:
        """A further machine, without a worker."""
        self.hosts.append(self._net.host(shared=[self.folder]))
        return self.hosts[-1]

    def start_worker(self, host: Host) -> None:
        """Starts a worker on a machine; one that was there must have ended, or be about to."""
        self._workers[host] = self.cluster.start_worker(host)

    def kill_worker(self, host: Host) -> None:
        """SIGKILL to the worker of a machine."""
        host.kill(self._workers[host])
        self._workers[host].wait()

    def workers_again(self) -> None:
        """Starts a worker wherever none is left."""
        for host, worker in self._workers.items():
            if worker.poll() is not None:
                self._workers[host] = self.cluster.start_worker(host)

    def submit(self, name: str, shape: JobShape, pace: float, epochs: int = 2) -> Job:
        """Submits a job and returns at once."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        train = make_job(
            self.data, folder, batch_size=32, accumulate=3, epochs=epochs,
            checkpoint_every=CHECKPOINT_EVERY, log_every=5,
        ).model_copy(update={"peer_timeout_seconds": shape.peer_timeout_seconds})  # fmt: skip
        (folder / "job.json").write_text(train.model_dump_json())
        (folder / PACE).write_text(json.dumps(pace))
        settings = folder / "settings.json"
        dask = self.cluster.settings.model_dump(mode="json")
        settings.write_text(json.dumps({"shape": dataclasses.asdict(shape), "dask": dask}))
        module = "tests.tasks.launch.submit"
        done = self.submitter.run([sys.executable, "-m", module, str(folder), str(settings)])
        assert done.returncode == 0, done.stdout
        return Job(self, folder, train)


class Job:
    """A job on a farm, seen from this machine, which is none of its hosts."""

    def __init__(self, farm: Farm, folder: Path, train: TrainJob) -> None:
        self._farm = farm
        self.folder, self.train = folder, train
        self.launcher = DaskLauncher(farm.cluster.settings)

    def status(self) -> JobStatus:
        """What the launcher says."""
        return self.launcher.status(self.folder)

    def worlds(self) -> list[World]:
        """Who has trained so far."""
        return worlds(self.folder)

    def checkpoints(self) -> list[int]:
        """Steps of the complete checkpoints."""
        found = (self.folder / "checkpoints").glob("step-*/complete.json")
        return sorted(int(path.parent.name.split("-")[1]) for path in found)

    def agent_on(self, host: Host) -> psutil.Process:
        """First process of the agent on a host."""
        attempt = newest(self.folder)
        assert attempt is not None
        records = {
            str(attempt.node_record(node.node)) for node in attempt.nodes()
            if node.host == host.address and node.is_alive
        }  # fmt: skip
        (found,) = [p for p in self.processes() if _is_agent(p) and p.environ()[NODE] in records]
        return found

    def rank_on(self, host: Host) -> psutil.Process:
        """The rank on a host."""
        (rank,) = self.agent_on(host).children()
        return rank

    def processes(self) -> list[psutil.Process]:
        """Every process of the job on any of the hosts."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                line = " ".join(process.cmdline())
                if f"{self.folder}/" in line or f"{self.folder}/" in process.environ().get(
                    NODE, ""
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait_until_trained_past(self, step: int, seconds: float = 120) -> None:
        """Waits until a step has begun and a checkpoint is complete."""

        def past() -> bool:
            assert self.status() is JobStatus.RUNNING, self.logs()
            history = self.worlds()
            return bool(history) and history[-1].last >= step and bool(self.checkpoints())

        wait_for(past, f"step {step}", seconds)

    def wait_for_world(self, number: int, seconds: float) -> float:
        """Waits until so many worlds have trained; returns how long it took."""
        return wait_for(lambda: len(self.worlds()) >= number, f"world {number}", seconds)

    def finish(self, seconds: float = 180) -> None:
        """Waits for the end; everything has been trained on exactly once, and nothing is left."""
        wait_for(lambda: self.status() is not JobStatus.RUNNING, "the end", seconds)
        assert self.status() is JobStatus.SUCCEEDED, self.logs()
        assert self.processes() == []
        counted = rows_that_count(self.worlds(), self.steps)
        for first in range(0, self.steps, self.steps_per_epoch):
            epoch = sum(counted[first : first + self.steps_per_epoch], Counter())
            assert epoch == self._all_rows()

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.train.training.epochs * self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch."""
        rows = sum(self._all_rows().values())
        return -(-rows // (self.train.training.batch_size * self.train.training.accumulate))

    def _all_rows(self) -> Counter[tuple[int, int]]:
        import pyarrow.parquet as pq

        rows: Counter[tuple[int, int]] = Counter()
        for path in self.train.train_files:
            table = pq.read_table(path, columns=["user", "item"])
            rows.update(zip(*(table[name].to_pylist() for name in ("user", "item")), strict=True))
        return rows

    def weights(self) -> dict[str, torch.Tensor]:
        """The trained weights."""
        folder = Path(self.train.output_dir)
        tensors = dict(load_file(folder / "towers.safetensors"))
        for path in sorted((folder / "tables").iterdir()):
            tensors[path.stem] = load_file(path)["weight"]
        return tensors

    def logs(self) -> str:
        """The end of everything that was logged."""
        paths = [*self.launcher.logs(self.folder), *(self._farm.folder / "cluster").glob("*.log")]
        return "\n".join(f"== {path}\n{path.read_text()[-4000:]}" for path in paths)


def farthest(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """Largest difference between two sets of weights."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def _is_agent(process: psutil.Process) -> bool:
    try:
        return "torch.distributed.run" in process.cmdline()
    except psutil.Error:
        return False


@contextmanager
def farm(folder: Path, workers: int) -> Iterator[Farm]:
    """A farm whose hosts and processes end with the context."""
    with network() as net:
        yield Farm(net, folder, workers)
