"""Several hosts on one machine, for tests of what crosses machines.

Each host has network, process, mount, IPC and host-name namespaces of its own (Linux): an address
that the others reach over a virtual switch, processes that see only each other, and empty folders
`/tmp`, `/var/tmp` and `/dev/shm` in which only the named shared folders appear. Nothing is added
to this machine's own interfaces, and nothing on it is reached from inside.

A host lives as long as its first process, which waits for the end of a pipe that this process
holds. When the pipe is closed, or this process dies in any way, the kernel ends every process of
the host and removes its interfaces and mounts: exactly what was made here, whatever happened.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from tasks.version import PROJECT_ROOT

_NAMESPACES = ("--net", "--mount", "--pid", "--ipc", "--uts")
_UNSHARE = ("unshare", *_NAMESPACES, "--mount-proc", "--fork", "--kill-child")
_TOOLS = ("unshare", "nsenter", "ip", "mount", "hostname")
_END_SECONDS = 20.0
# The first process inherits orphans; as it ignores how they end, no zombie of them is left.
_WAIT = (
    "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    "print('ready', flush=True); sys.stdin.read()"
)
_SWITCH = f"ip link set lo up && exec {shlex.quote(sys.executable)} -c {shlex.quote(_WAIT)}"
# The new folders are put together on /mnt of the host alone, where the old ones can still be seen.
_HOST = f"""\
set -eu
hostname "$1"; shift
mount --make-rprivate /
for folder in /tmp /var/tmp /dev/shm; do
    mount -t tmpfs -o mode=1777 tmpfs /mnt
    for shared in "$@"; do
        case "$shared" in
            "$folder"/*)
                inside="/mnt/${{shared#"$folder"/}}"
                mkdir -p "$inside"
                mount --rbind "$shared" "$inside" ;;
        esac
    done
    mount --move /mnt "$folder"
done
{_SWITCH}
"""


@dataclass(frozen=True)
class Host:
    """A host; `Network.host` makes it.

    Attributes:
        name: Its host name.
        address: Its IPv4 address.
    """

    name: str
    address: str
    _pid: int = field(repr=False)
    _switch: int = field(repr=False)
    _stack: ExitStack = field(repr=False)

    def start(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a command on the host, in the root of the repository.

        Args:
            command: Program and arguments.
            log: File that its output is appended to.
            environment: Variables added to this process's.

        Returns:
            The process, for `kill`; it and its children end with the network at the latest.
        """
        with log.open("ab") as output:
            process = subprocess.Popen(
                self._inside(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(environment),
                start_new_session=True,
            )
        self._stack.callback(self._end, process)
        return process

    def run(
        self,
        command: Sequence[str],
        *,
        timeout: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the host to its end; both its outputs come back as one text."""
        return subprocess.run(
            self._inside(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(environment),
            text=True,
            check=False,
            timeout=timeout,
        )

    def kill(self, process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
        """Sends a signal to a command that `start` started and to its children."""
        os.killpg(process.pid, number)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            self.kill(process)
            process.wait()

    def cut_off(self) -> None:
        """Pulls the cable: packets vanish, and nobody is told."""
        _run(*_in_net(self._switch), "ip", "link", "set", self.name, "down")

    def reconnect(self) -> None:
        """Puts the cable back."""
        _run(*_in_net(self._switch), "ip", "link", "set", self.name, "up")

    def _inside(self, command: Sequence[str]) -> list[str]:
        enter = ["nsenter", "--target", str(self._pid), *_NAMESPACES]
        return [*enter, "env", f"--chdir={PROJECT_ROOT}", *command]


class Network:
    """A virtual switch and the hosts on it, `host1`, `host2`, …; `network` makes it."""

    def __init__(self, stack: ExitStack, switch: int) -> None:
        self._stack = stack
        self._switch = switch
        self._numbers = count(1)

    def host(self, *, shared: Sequence[Path] = ()) -> Host:
        """Makes a host that lives as long as the network.

        Args:
            shared: Folders of this machine that it sees at the same path. The repository and the
                interpreter's environment are always among them.
        """
        number = next(self._numbers)
        name, address = f"host{number}", f"10.77.0.{number}"
        seen = map(str, (PROJECT_ROOT, Path(sys.prefix), *shared))
        pid = self._stack.enter_context(_alive("sh", "-c", _HOST, "sh", name, *seen))
        other_end = ["type", "veth", "peer", "name", "eth0", "netns", str(pid)]
        _run(*_in_net(self._switch), "ip", "link", "add", name, *other_end)
        _run(*_in_net(self._switch), "ip", "link", "set", name, "master", "switch", "up")
        _run(*_in_net(pid), "ip", "address", "add", f"{address}/24", "dev", "eth0")
        _run(*_in_net(pid), "ip", "link", "set", "eth0", "up")
        return Host(name, address, pid, self._switch, self._stack)


@contextmanager
def network() -> Iterator[Network]:
    """Makes a network whose hosts reach each other and nothing else.

    Skips the running test where this user may not make one.
    """
    _skip_unless_allowed()
    with ExitStack() as stack:
        switch = stack.enter_context(_alive("sh", "-c", _SWITCH))
        _run(*_in_net(switch), "ip", "link", "add", "switch", "type", "bridge")
        _run(*_in_net(switch), "ip", "link", "set", "switch", "up")
        yield Network(stack, switch)


@contextmanager
def _alive(*command: str) -> Iterator[int]:
    """New namespaces that live as long as the context; gives the number of their first process.

    Args:
        command: The first process: says `ready`, then ends when its input does.
    """
    with subprocess.Popen(
        [*_UNSHARE, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as outer:
        assert outer.stdin is not None
        assert outer.stdout is not None
        try:
            answer = outer.stdout.readline()
            if answer.strip() != "ready":
                raise RuntimeError(f"a host did not start: {answer}{outer.stdout.read()}")
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            yield int(children.read_text())
        finally:
            outer.stdin.close()
            outer.wait(timeout=_END_SECONDS)


def _in_net(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net"]


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """This process's variables, without the one that names its folder for temporary files."""
    kept = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    return {**kept, **(more or {})}


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _skip_unless_allowed() -> None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"hosts on one machine need the programs {', '.join(missing)}")
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this user may not make network namespaces: {tried.stderr.strip()}")
