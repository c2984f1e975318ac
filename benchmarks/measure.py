"""Running contenders in turn, each in a process of its own, and watching time and memory.

A contender is a module with `serve(jobs)`: it gets ready (imports, cluster), then does one job
for each line of JSON that it reads and answers with one line. Only the job is timed. Contenders
take turns, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import psutil

_SAMPLE_SECONDS = 0.02
_READY = "ready"


@dataclass
class Samples:
    """What a contender's runs took."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median time of a run in seconds."""
        return statistics.median(self.seconds)

    @property
    def cpu(self) -> float:
        """Median processor time of a run in seconds, of the contender's own process alone."""
        return statistics.median(self.cpu_seconds)

    @property
    def peak(self) -> float:
        """Median of the runs' peak memory in MiB."""
        return statistics.median(self.peak_mib)

    def summary(self) -> dict[str, Any]:
        """Everything, rounded."""
        return {
            "seconds": round(self.median, 3),
            "peak_mib": round(self.peak),
            "all_seconds": [round(value, 3) for value in self.seconds],
        }


class Contender:
    """A process that does jobs; use it as a context.

    Args:
        module: Name of its module.
        arguments: Command-line arguments.
        environment: Variables added to this process's.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> Contender:
        if self._read() != _READY:
            raise RuntimeError("the contender did not get ready")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, job: Mapping[str, Any], into: Samples | None = None) -> dict[str, Any]:
        """Does one job.

        Args:
            job: What the module understands.
            into: Takes the time and the peak memory of the process and its children.

        Returns:
            The module's answer.
        """
        with _PeakMemory(self._process.pid) as memory:
            self.ask(job)
            answer = self.answer()
        if into is not None:
            into.seconds.append(answer["seconds"])
            into.cpu_seconds.append(answer["cpu"])
            into.peak_mib.append(memory.peak / 2**20)
        return answer

    def ask(self, job: Mapping[str, Any]) -> None:
        """Lets the process begin a job; arguments as in `run`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Waits for the end of the job that was asked for; returns the module's answer."""
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the contender ended with status {self._process.wait()}")
        return line.strip()


def serve(work: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """A contender's loop: answers each job with its seconds and what `work` returns."""
    print(_READY, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        started, cpu = time.perf_counter(), time.process_time()
        extra = work(job)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        print(json.dumps({"seconds": seconds, "cpu": cpu, **(extra or {})}), flush=True)


def interleave(
    contenders: Mapping[str, Contender],
    job_of: Callable[[str], Mapping[str, Any]],
    runs: int,
    say: Callable[[str], None],
) -> dict[str, Samples]:
    """Lets contenders take turns; one round before the first is not counted.

    Args:
        contenders: By name.
        job_of: The job of a contender; called before each run, untimed.
        runs: Counted runs of each.
        say: Takes a line about each run.
    """
    samples = {name: Samples() for name in contenders}
    for number in range(runs + 1):
        for name, contender in contenders.items():
            counted = samples[name] if number else None
            seconds = contender.run(job_of(name), counted)["seconds"]
            say(f"{'warm-up' if not number else f'run {number}'} {name}: {seconds:.2f} s")
    return samples


class _PeakMemory:
    """Highest sum of the resident memory of a process and its descendants, in bytes."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0

    def __enter__(self) -> _PeakMemory:
        self._processes = [self._root, *self._root.children(recursive=True)]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, sum(map(_resident, self._processes)))
            if self._done.wait(_SAMPLE_SECONDS):
                return


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def busy_machine() -> float:
    """Load average of the last minute over the number of cores; above 0.7 figures mislead."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def opened(stack: ExitStack, contenders: Mapping[str, Contender]) -> dict[str, Contender]:
    """Enters contenders into a stack."""
    return {name: stack.enter_context(contender) for name, contender in contenders.items()}
