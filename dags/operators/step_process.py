"""One step as a child process: its output is passed on as it comes, its group never outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

_GUARD = Path(__file__).with_name("step_guard.py")
# Airflow kills a task five seconds after it was told to stop.
_GRACE_SECONDS = 4.0
_LAST_LINES = 20
_LOOK_EVERY_SECONDS = 0.5
_DRAIN_SECONDS = 1.0


@dataclass(frozen=True)
class StepExit:
    """How a step's process ended."""

    status: int
    """Exit status; 128 + n when signal n ended it."""
    result: dict[str, Any] | None
    """The JSON object on the last line of standard output, if there is one."""
    last_lines: tuple[str, ...]
    """End of standard error."""


class StepProcess:
    """Runs a command in a process group of its own.

    Args:
        command: Program and arguments.
        cwd: Working folder.
        env: Environment.
        on_line: Receives each line of output without its end, as soon as it is complete. The
            last line of standard output is the result and is held back.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> None:
        self._on_line = on_line
        self._errors: deque[str] = deque(maxlen=_LAST_LINES)
        self._held: str | None = None
        self._reaped = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), *command],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self._process.pid

    def wait(self) -> StepExit:
        """Passes on the output until the process ends, then ends what is left of its group."""
        try:
            self._pass_output()
        finally:
            status = self._close()
        return StepExit(status, self._result(), tuple(self._errors))

    def stop(self) -> None:
        """Asks the group to end and kills it after a grace period; safe in a signal handler."""
        if self._reaped:
            return
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._members() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)

    def _pass_output(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            for stream, take in (
                (self._process.stdout, self._take_output),
                (self._process.stderr, self._take_error),
            ):
                selector.register(stream, selectors.EVENT_READ, _Lines(take))
            ended: float | None = None
            while selector.get_map():
                for key, _ in selector.select(_LOOK_EVERY_SECONDS):
                    if not key.data.read(key.fileobj):
                        selector.unregister(key.fileobj)
                # A process that left the group may hold a pipe open: the step is over all the same.
                if ended is None and self._has_ended():
                    ended = time.monotonic()
                if ended is not None and time.monotonic() - ended > _DRAIN_SECONDS:
                    break
            for key in selector.get_map().values():
                key.data.flush()
        while not self._has_ended():
            time.sleep(0.05)

    def _take_output(self, line: str) -> None:
        if self._held is not None:
            self._on_line(self._held)
        self._held = line

    def _take_error(self, line: str) -> None:
        self._errors.append(line)
        self._on_line(line)

    def _result(self) -> dict[str, Any] | None:
        if self._held is None:
            return None
        try:
            value = json.loads(self._held)
        except ValueError:
            value = None
        if isinstance(value, dict):
            return value
        self._on_line(self._held)
        return None

    def _has_ended(self) -> bool:
        """Whether the process has ended; it is not reaped yet, so its id stays taken."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def _close(self) -> int:
        """Ends the group, reaps the process and returns its exit status."""
        if not self._has_ended() or self._members():
            self.stop()
        self._process.wait()
        self._reaped = True
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        status = self._process.returncode
        return 128 - status if status < 0 else status

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _members(self) -> list[int]:
        """Living processes of the group."""
        members = []
        for pid in psutil.pids():
            try:
                in_group = os.getpgid(pid) == self.pid
                if in_group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    members.append(pid)
            except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
                continue
        return members


class _Lines:
    """Cuts a stream into lines."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def read(self, stream: IO[bytes]) -> bool:
        """Reads what is there; false at the end of the stream."""
        chunk = os.read(stream.fileno(), 1 << 16)
        # Progress bars go back to the start of their line instead of ending it.
        *lines, self._rest = (self._rest + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._give(line)
        if not chunk:
            self.flush()
        return bool(chunk)

    def flush(self) -> None:
        """Gives an unfinished last line."""
        self._give(self._rest)
        self._rest = b""

    def _give(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._take(text)
