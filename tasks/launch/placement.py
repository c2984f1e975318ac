"""Where nodes go: on the workers of a Dask cluster, which may go and come back meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tasks.config import DaskSettings
from tasks.launch.node import start_node
from tasks.longtail.cluster import security_of

if TYPE_CHECKING:
    from distributed import Client

_CONNECT_SECONDS = 10
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0


class Placement:
    """Starts nodes on the workers of a Dask cluster.

    Not as Dask tasks: those would be tried again elsewhere, wait behind other work, and end with
    their worker. Dask only calls a function on a worker, which starts the node and returns.

    Args:
        settings: Where the scheduler is.
    """

    def __init__(self, settings: DaskSettings) -> None:
        self._settings = settings
        self._client: Client | None = None

    def hosts(self) -> Counter[str]:
        """Workers of the cluster by the address of their machine.

        Raises:
            OSError: The scheduler does not answer.
        """
        return Counter(host_of(address) for address in self._workers())

    def start(self, host: str, folder: str, node: str, endpoint: str) -> None:
        """Starts a node on a machine of the cluster.

        Args:
            host: The machine.
            folder: The attempt's folder.
            node: Name of the node.
            endpoint: Address and port of the rendezvous store.

        Raises:
            OSError: The scheduler or the worker does not answer, or the machine does not see the
                folder.
        """
        worker = next((w for w in self._workers() if host_of(w) == host), None)
        if worker is None:
            raise OSError(f"the worker on {host} has gone")
        try:
            self._connected().run(start_node, folder, node, host, endpoint, workers=[worker])
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"the worker on {host} cannot start a node: {error}") from error

    def close(self) -> None:
        """Lets go of the scheduler."""
        client, self._client = self._client, None
        if client is not None:
            client.close(timeout=2)  # type: ignore[no-untyped-call]

    def _workers(self) -> Sequence[str]:
        try:
            return sorted(self._connected().nthreads())  # type: ignore[no-untyped-call]
        except Exception as error:
            # A client that has lost its scheduler is of no more use.
            self.close()
            raise OSError(f"the scheduler does not answer: {error}") from error

    def _connected(self) -> Client:
        from distributed import Client

        if self._client is None:
            self._client = Client(  # type: ignore[no-untyped-call]
                str(self._settings.scheduler),
                security=security_of(self._settings),
                timeout=_CONNECT_SECONDS,
                set_as_default=False,
            )
        return self._client


class Pauses:
    """How long a machine gets no node after one has failed on it: twice as long each time."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._length: dict[str, float] = {}

    def add(self, host: str) -> None:
        """Begins a pause."""
        length = min(2 * self._length.get(host, _FIRST_PAUSE / 2), _LONGEST_PAUSE)
        self._length[host] = length
        self._until[host] = time.monotonic() + length

    def over(self, host: str) -> bool:
        """Whether the machine may get a node."""
        return time.monotonic() >= self._until.get(host, 0.0)


def choose(workers: Mapping[str, int], busy: Mapping[str, int], wanted: int) -> list[str]:
    """Machines for new nodes: as many on each as it has workers, the emptiest first.

    Args:
        workers: Workers by machine.
        busy: Nodes that run, by machine.
        wanted: Nodes to place.
    """
    free = sorted(
        (number, host)
        for host, count in workers.items()
        for number in range(busy.get(host, 0), count)
    )
    return [host for _, host in free[:wanted]]


def host_of(address: str) -> str:
    """Machine of a Dask address such as `tls://10.0.0.1:4711`."""
    return urlsplit(address).hostname or address
