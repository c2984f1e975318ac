"""Where the tasks of a step run: on a Dask cluster, or here when the data is small.

The same functions run in both places and the results do not depend on the place. Starting a
cluster on this machine costs seconds, so a small input is worked on in the step's own process.
The workers of a running cluster may be on other machines: all they share with this one is the
lake, which is checked before they get anything to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tasks.config import DaskSettings
from tasks.errors import ClusterError, ConfigError, LakeError
from tasks.lake import Lake
from tasks.longtail.exchange import scratch_folder
from tasks.progress import log, progress

if TYPE_CHECKING:
    from distributed import Client, Future
    from distributed.security import Security

Item = TypeVar("Item")
Result = TypeVar("Result")

SMALL_BYTES = 256 << 20
"""Inputs up to this size do not pay for starting a cluster on this machine."""
_CONNECT_SECONDS = 30
"""How long a scheduler may take to answer: Dask's own default."""
_POLL_SECONDS = 5


KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
"""What glibc's allocator (`man mallopt`) keeps for the next array.

Dask has it return all freed memory at once; then every array pays a page fault for each 4 KiB
again, which more than doubles the time of tasks that work through vectors.
"""


class Runner(Protocol):
    """Runs a function over many small descriptions of work."""

    def map(
        self, name: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Results in the order of the items; the first error is raised.

        Args:
            name: What is shown as the name of the work.
            function: A module-level function; it reads and writes the lake itself.
            items: Descriptions of the work, small enough to be sent.
        """


class Inline:
    """Runs the tasks one after another in this process."""

    def map(
        self, name: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """See `Runner.map`."""
        results = []
        with progress(name, len(items)) as ticker:
            for item in items:
                results.append(function(item))
                ticker.advance()
        return results


class OnDask:
    """Runs the tasks on the workers of a Dask cluster.

    Args:
        client: A connected client.
        patience: Seconds without any worker after which the work is given up.
    """

    def __init__(self, client: Client, patience: float) -> None:
        self._client = client
        self._patience = patience

    def map(
        self, name: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """See `Runner.map`."""
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import NoValidWorkerError, NoWorkerError

        futures = self._client.map(function, items, pure=False)
        try:
            self._follow(name, futures)
            return list(self._client.gather(futures))  # type: ignore[no-untyped-call]
        except (KilledWorker, NoValidWorkerError, NoWorkerError) as error:
            raise ClusterError(
                f"the Dask workers could not finish '{name}': {error}",
                fix="look for killed workers (memory: dask.memory_limit), then run the step again",
            ) from error
        except (FutureCancelledError, CommClosedError) as error:
            raise _connection_lost(name, error) from error
        finally:
            self._client.cancel(futures)  # type: ignore[no-untyped-call]

    def _follow(self, name: str, futures: Sequence[Future[Any]]) -> None:
        """Shows progress until all futures are done or one has failed."""
        from distributed import wait

        pending = set(futures)
        last_worker = time.monotonic()
        with progress(name, len(futures)) as ticker:
            while pending:
                try:
                    done = wait(  # type: ignore[no-untyped-call]
                        pending, timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED"
                    ).done
                except TimeoutError:
                    # Dask itself would wait for ever for a worker to come back.
                    if self._has_workers(name):
                        last_worker = time.monotonic()
                    elif time.monotonic() - last_worker > self._patience:
                        raise ClusterError(
                            f"the Dask cluster lost all its workers during '{name}'",
                            fix="start workers, then run the step again",
                        ) from None
                    continue
                pending -= done
                ticker.advance(len(done))
                if any(future.status == "error" for future in done):
                    return

    def _has_workers(self, name: str) -> bool:
        try:
            return bool(self._client.nthreads())  # type: ignore[no-untyped-call]
        except OSError as error:
            raise _connection_lost(name, error) from error


@contextmanager
def open_runner(settings: DaskSettings, input_bytes: int, lake: Lake) -> Iterator[Runner]:
    """Opens the place where a step's tasks run.

    Args:
        settings: Address of a scheduler, or the size of a cluster on this machine.
        input_bytes: Size of the files to be read, which decides whether a cluster is started.
        lake: The lake that the tasks read and write.

    Raises:
        ClusterError: The scheduler cannot be reached or has no workers.
        ConfigError: The certificates cannot be used.
        LakeError: Workers of the scheduler do not see the lake.
    """
    if settings.scheduler is None and input_bytes <= SMALL_BYTES:
        log("tasks run in this process", input_mib=round(input_bytes / 2**20, 1))
        yield Inline()
        return
    where = _started_here(settings) if settings.scheduler is None else _connect(settings, lake)
    with where as client:
        yield OnDask(client, settings.workers_timeout_seconds)


@contextmanager
def _started_here(settings: DaskSettings) -> Iterator[Client]:
    started = time.monotonic()
    import dask
    from distributed import Client, LocalCluster

    options = {
        "distributed.nanny.pre-spawn-environ": worker_environment(settings.workers),
        # A task that has killed two workers would kill the next two as well.
        "distributed.scheduler.allowed-failures": 1,
    }
    with (
        dask.config.set(options),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=settings.workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=settings.memory_limit,
            host="127.0.0.1",
            # Without an address Dask serves on port 8787 of all interfaces.
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        closing(Client(cluster)) as client,  # type: ignore[no-untyped-call]
    ):
        seconds = round(time.monotonic() - started, 1)
        log("Dask cluster started on this machine", workers=settings.workers, seconds=seconds)
        if find_spec("bokeh") is not None:  # without it the page is empty
            _tell_of_dashboard(client)
        yield client


def _tell_of_dashboard(client: Client) -> None:
    """Reports the dashboard's address; a scheduler shows it as a link while the step runs."""
    if client.dashboard_link:
        log("links", dask_dashboard=client.dashboard_link)


def worker_environment(workers: int) -> dict[str, Any]:
    """Environment of the workers of a cluster on this machine.

    Args:
        workers: How many share the machine's cores.
    """
    import dask

    return {
        **dask.config.get("distributed.nanny.pre-spawn-environ"),
        "POLARS_MAX_THREADS": str(max(1, (os.cpu_count() or 1) // workers)),
        **KEEP_FREED_MEMORY,
    }


@contextmanager
def _connect(settings: DaskSettings, lake: Lake) -> Iterator[Client]:
    from distributed import Client

    address = str(settings.scheduler)
    fix = "start the scheduler and its workers, or leave dask.scheduler empty for this machine"
    patience = settings.workers_timeout_seconds
    security = security_of(settings)
    try:
        client = Client(  # type: ignore[no-untyped-call]
            address, security=security, timeout=min(patience, _CONNECT_SECONDS)
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"the Dask scheduler cannot be reached: {error}", where=address, fix=fix
        ) from error
    # Not `with client`, which must end in the thread that it began in.
    with closing(client):
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError as error:
            raise ClusterError(
                f"the Dask cluster has no workers after {patience:g} s", where=address, fix=fix
            ) from error
        _check_lake(client, lake)
        workers = len(client.nthreads())  # type: ignore[no-untyped-call]
        log("tasks run on the Dask cluster", scheduler=address, workers=workers)
        _tell_of_dashboard(client)
        yield client


def security_of(settings: DaskSettings) -> Security:
    """How a client proves who it is, and checks who answers.

    Raises:
        ConfigError: The address asks for certificates, and there are none or they are unusable.
    """
    from distributed.security import Security

    where, tls = "dask.tls", settings.tls
    given = {"tls_ca_file": tls.ca, "tls_client_cert": tls.cert, "tls_client_key": tls.key}
    known = {name: path for name, path in given.items() if path is not None}
    security = Security(**known)  # type: ignore[no-untyped-call]
    try:
        found = security.get_connection_args("client")["ssl_context"]  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ConfigError(
            f"the certificates for the Dask scheduler cannot be used: {error}",
            where=f"{where}: {', '.join(str(path) for path in given.values())}",
            fix="give readable PEM files, and the key that belongs to the certificate",
        ) from error
    if found is None and str(settings.scheduler).startswith("tls://"):
        raise ConfigError(
            f"no certificates for the Dask scheduler {settings.scheduler}",
            where=where,
            fix="set dask.tls.ca, dask.tls.cert and dask.tls.key",
        )
    return security


def _check_lake(client: Client, lake: Lake) -> None:
    """Checks that all workers see the same lake.

    A worker that writes to a disk of its own would leave outputs with holes.

    Raises:
        LakeError: Some do not.
    """
    with scratch_folder(lake) as scratch:
        path = f"{scratch.path}/shared"
        lake.write_text(path, scratch.path)
        answers = client.run(_sees, lake.url, path, on_error="return")
    blind = {address: answer for address, answer in answers.items() if answer is not True}
    if blind:
        address, answer = min(blind.items())
        why = f": {answer}" if isinstance(answer, BaseException) else ""
        raise LakeError(
            f"{len(blind)} of {len(answers)} Dask workers do not see the lake; {address}{why}",
            where=lake.url,
            fix="give all machines the same lake at the same path or URL, and install tailtower",
        )


def _sees(url: str, path: str) -> bool:
    return Lake(url).exists(path)


def _connection_lost(name: str, error: BaseException) -> ClusterError:
    return ClusterError(
        f"the connection to the Dask scheduler was lost during '{name}': {error}",
        fix="check the scheduler, then run the step again",
    )
