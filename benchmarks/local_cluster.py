"""The warm Dask cluster that the product is measured on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

CORES = os.cpu_count() or 1


@contextmanager
def local_cluster(workers: int = CORES) -> Iterator[str]:
    """A cluster of single-threaded workers on this machine; gives its address.

    Args:
        workers: How many; they share the cores' threads.
    """
    import dask
    from distributed import LocalCluster

    from tasks.longtail.cluster import worker_environment

    options = {"distributed.nanny.pre-spawn-environ": worker_environment(workers)}
    with (
        dask.config.set(options),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
    ):
        yield str(cluster.scheduler_address)
