"""Where the tasks of a step run: on a Dask cluster, or here when the data is small.

The same functions run in both places and the results do not depend on the place. Starting a
cluster on this machine costs seconds, so a small input is worked on in the step's own process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tasks.config import DaskSettings
from tasks.errors import ClusterError
from tasks.progress import log, progress

if TYPE_CHECKING:
    from distributed import Client, Future

Item = TypeVar("Item")
Result = TypeVar("Result")

SMALL_BYTES = 256 << 20
"""Inputs up to this size do not pay for starting a cluster on this machine."""
_WORKERS_TIMEOUT_SECONDS = 60
_POLL_SECONDS = 5


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
    """

    def __init__(self, client: Client) -> None:
        self._client = client

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
            raise ClusterError(
                f"the connection to the Dask scheduler was lost during '{name}': {error}",
                fix="check the scheduler, then run the step again",
            ) from error
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
                    if self._client.nthreads():  # type: ignore[no-untyped-call]
                        last_worker = time.monotonic()
                    elif time.monotonic() - last_worker > _WORKERS_TIMEOUT_SECONDS:
                        raise ClusterError(
                            f"the Dask cluster lost all its workers during '{name}'",
                            fix="start workers, then run the step again",
                        ) from None
                    continue
                pending -= done
                ticker.advance(len(done))
                if any(future.status == "error" for future in done):
                    return


@contextmanager
def open_runner(settings: DaskSettings, input_bytes: int) -> Iterator[Runner]:
    """Opens the place where a step's tasks run.

    Args:
        settings: Address of a scheduler, or the size of a cluster on this machine.
        input_bytes: Size of the files to be read, which decides whether a cluster is started.

    Raises:
        ClusterError: The scheduler cannot be reached or has no workers.
    """
    if settings.scheduler is None and input_bytes <= SMALL_BYTES:
        log("tasks run in this process", input_mib=round(input_bytes / 2**20, 1))
        yield Inline()
        return
    with _client(settings) as client:
        yield OnDask(client)


@contextmanager
def _client(settings: DaskSettings) -> Iterator[Client]:
    started = time.monotonic()
    import dask
    from distributed import Client, LocalCluster

    if settings.scheduler is not None:
        with _connect(settings.scheduler) as client:
            log("tasks run on the Dask cluster", scheduler=settings.scheduler)
            yield client
        return
    threads = max(1, (os.cpu_count() or 1) // settings.workers)
    options = {
        "distributed.nanny.pre-spawn-environ": {
            **dask.config.get("distributed.nanny.pre-spawn-environ"),
            "POLARS_MAX_THREADS": str(threads),
        },
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
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        seconds = round(time.monotonic() - started, 1)
        log("Dask cluster started on this machine", workers=settings.workers, seconds=seconds)
        yield client


@contextmanager
def _connect(address: str) -> Iterator[Client]:
    from distributed import Client

    fix = "start the scheduler and its workers, or leave dask.scheduler empty for this machine"
    try:
        client = Client(address, timeout=_WORKERS_TIMEOUT_SECONDS / 2)  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"the Dask scheduler cannot be reached: {error}", where=address, fix=fix
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_WORKERS_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise ClusterError(
                f"the Dask cluster has no workers after {_WORKERS_TIMEOUT_SECONDS} s",
                where=address,
                fix=fix,
            ) from error
        yield client
