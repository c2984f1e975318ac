"""What more ranks cost: the time of several ranks beside as many processes that exchange nothing.

    python -m benchmarks.scaling [--rows 1000000] [--ranks 2] [--batch 8192] [--runs 5]

Weak scaling: every rank has one thread, one core and the same work at any number of ranks. An
example is compared with the `--batch` examples of its micro-batch over all ranks, and a macro-batch
has `--micro` of them at the largest number of ranks, proportionally fewer below. Groups of
processes keep their models and take turns; between turns they sleep. One round before the first
is not counted, times are medians. `tailtower` is the product's training from Parquet to updated
weights; `traditional` has tables with dense gradients in DistributedDataParallel. Beside each runs
a control: as many processes that do the same work for themselves. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Contender, busy_machine
from benchmarks.training import ONE_THREAD, say
from benchmarks.training_world import WorldShape, make_job, make_world
from models.config import TrainJob
from tasks.errors import ConfigError

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}


@dataclass
class Group:
    """Processes that work at the same time.

    Attributes:
        name: What is shown.
        processes: The processes.
        together: Whether they wait for each other, so that the slowest decides.
    """

    name: str
    processes: Sequence[Contender]
    together: bool
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    examples: int = 0
    parts: list[dict[str, float]] = field(default_factory=list)

    def run(self, counted: bool) -> float:
        """Lets all processes do their job once; returns its time."""
        answers = self.ask({})
        times = [answer["seconds"] for answer in answers]
        seconds = max(times) if self.together else statistics.mean(times)
        if counted:
            self.seconds.append(seconds)
            self.cpu_seconds.append(sum(answer["cpu"] for answer in answers))
            self.parts.append(answers[0].get("parts", {}))
        examples = [int(answer["examples"]) for answer in answers]
        self.examples = examples[0] if self.together else sum(examples)
        return seconds

    def ask(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Gives all processes a job at once and waits for all answers."""
        for process in self.processes:
            process.ask(job)
        return [process.answer() for process in self.processes]

    @property
    def median(self) -> float:
        """Median time."""
        return statistics.median(self.seconds)

    @property
    def cpu_microseconds(self) -> float:
        """Median processor time of an example, in microseconds."""
        return statistics.median(self.cpu_seconds) / self.examples * 1e6

    def summary(self) -> dict[str, Any]:
        """Everything, rounded."""
        found: dict[str, Any] = {
            "examples_per_second": round(self.examples / self.median),
            "cpu_microseconds_per_example": round(self.cpu_microseconds, 2),
            "all_seconds": [round(value, 3) for value in self.seconds],
        }
        if self.parts and self.parts[0]:
            found["parts"] = {
                name: round(statistics.median(run[name] for run in self.parts), 3)
                for name in sorted(self.parts[0])
            }
        return found


def open_group(
    stack: ExitStack,
    folder: Path,
    name: str,
    kind: str,
    jobs: Sequence[TrainJob],
    *,
    together: bool,
) -> Group:
    """Starts the processes of a group; they get ready at the same time.

    Args:
        stack: Ends them.
        folder: For files of the group.
        name: Name of the group.
        kind: Who trains, see `benchmarks/scaling_contenders.py`.
        jobs: Job of each process.
        together: Whether they are ranks of one training.
    """
    processes = []
    for rank, job in enumerate(jobs):
        path = folder / f"{name}-{rank}.json"
        path.write_text(job.model_dump_json())
        ranks = len(jobs) if together else 1
        place = [str(rank if together else 0), str(ranks), str(folder / f"{name}.store")]
        local = {"LOCAL_RANK": place[0], "LOCAL_WORLD_SIZE": place[1], "CORE": str(rank)}
        processes.append(
            Contender(
                "benchmarks.scaling_contenders",
                [kind, str(path), *place],
                {**ONE_THREAD, **LOOPBACK, **local},
            )
        )
    for process in processes:
        stack.enter_context(process)
    return Group(name, processes, together)


@dataclass(frozen=True)
class Plan:
    """Sizes of the comparison.

    Attributes:
        options: The command line.
        kind: Who trains.
        shape: Shape of the examples.
        world: Their folder.
    """

    options: argparse.Namespace
    kind: str
    shape: WorldShape
    world: Path

    @classmethod
    def of(cls, options: argparse.Namespace, kind: str) -> Plan:
        """The sizes of a contender, whose examples are made once.

        A file has what a rank takes for a macro-batch.
        """
        most = max(options.ranks)
        if kind == "traditional":
            batch, in_file = options.traditional_batch, options.traditional_micro
            steps = in_file * most
        else:
            batch, in_file = options.batch, options.micro // most
            steps = options.micro * options.macros
        shape = WorldShape(options.rows, steps, batch=batch, steps_per_file=in_file)
        return cls(options, kind, shape, make_world(options.cache, shape))

    @property
    def files(self) -> int:
        """Files of a rank."""
        return self.shape.steps // self.shape.steps_per_file // self.largest

    @property
    def largest(self) -> int:
        """The largest number of ranks."""
        return int(max(self.options.ranks))

    def job(self, files: slice, ranks: int) -> TrainJob:
        """Job of so many ranks on some of the files."""
        options = self.options
        settings: dict[str, object] = {
            "accumulate": options.micro * ranks // self.largest,
            "batch_size": options.batch,
        }
        if self.kind == "traditional":
            settings = {
                "accumulate": options.traditional_micro,
                "batch_size": options.traditional_batch,
            }
        job = make_job(self.world, self.shape, self.shape.steps, **settings)
        tables = {
            name: table.model_copy(update={"sharding": options.sharding})
            for name, table in job.tables.items()
        }
        return job.model_copy(update={"tables": tables, "train_files": job.train_files[files]})

    def groups(self, stack: ExitStack, folder: Path, *, controls: bool = True) -> list[Group]:
        """The groups of a contender: one process, ranks, and their control if it is wanted."""
        found, kind = [], self.kind
        count = self.largest if controls or kind == "traditional" else 1
        alone = [self.job(slice(n, None, self.largest), 1) for n in range(count)]
        every = open_group(stack, folder, f"{kind}_control", kind, alone, together=False)
        found.append(Group(f"{kind}_1", every.processes[:1], together=True))
        for ranks in self.options.ranks:
            if kind == "traditional":
                jobs = alone[:ranks]
            else:
                jobs = [self.job(slice(self.files * ranks), ranks)] * ranks
            found.append(open_group(stack, folder, f"{kind}_{ranks}", kind, jobs, together=True))
            if controls:
                some = every.processes[:ranks]
                found.append(Group(f"{kind}_control_{ranks}", some, together=False))
        return found


def take_turns(groups: Sequence[Group], runs: int) -> None:
    """Lets groups take turns; one round before the first is not counted."""
    for number in range(runs + 1):
        for group in groups:
            seconds = group.run(counted=number > 0)
            say(f"{'warm-up' if not number else f'run {number}'} {group.name}: {seconds:.2f} s")


def compare(groups: Sequence[Group], kind: str, ranks: int) -> dict[str, float]:
    """Efficiencies at a number of ranks, by time and by processor time."""
    by_name = {group.name: group for group in groups}
    alone, ours = by_name[f"{kind}_1"], by_name[f"{kind}_{ranks}"]
    control = by_name[f"{kind}_control_{ranks}"]
    prefix = "" if kind == "tailtower" else f"{kind}_"
    return {
        f"{prefix}efficiency_{ranks}": round(control.median / ours.median, 3),
        f"{prefix}raw_efficiency_{ranks}": round(alone.median / ours.median, 3),
        f"{prefix}cpu_efficiency_{ranks}": round(
            control.cpu_microseconds / ours.cpu_microseconds, 3
        ),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All contenders."""
    report: dict[str, Any] = {}
    for kind in ("tailtower", "traditional"):
        if kind in options.without:
            continue
        with ExitStack() as stack, tempfile.TemporaryDirectory() as name:
            groups = Plan.of(options, kind).groups(stack, Path(name))
            take_turns(groups, options.runs)
            for ranks in options.ranks:
                report |= compare(groups, kind, ranks)
            report |= {group.name: group.summary() for group in groups}
            if kind == "tailtower":
                report |= exchanged(groups[1])
    return report


def exchanged(group: Group) -> dict[str, Any]:
    """Bytes between ranks: of rows and their gradients, and of pooled vectors in their place."""
    answers = group.ask({"count": True})
    rows, pooled = (sum(answer[key] for answer in answers) for key in ("exchange", "pooled"))
    return {
        "exchange_bytes_ratio": round(rows / pooled, 3),
        "exchange_bytes_per_example": round(rows / group.examples),
        "pooled_bytes_per_example": round(pooled / group.examples),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="users, and items")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="at most the cores")
    parser.add_argument("--batch", type=int, default=8192, help="micro-batch over all ranks")
    parser.add_argument("--micro", type=int, default=16, help="micro-batches of a macro-batch")
    parser.add_argument("--macros", type=int, default=2, help="macro-batches of one run")
    parser.add_argument(
        "--traditional-micro", type=int, default=16, help="batches that are exchanged together"
    )
    parser.add_argument("--traditional-batch", type=int, default=1024, help="of a rank")
    parser.add_argument("--sharding", default="auto", help="of all tables of the product")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each group")
    parser.add_argument("--without", nargs="*", default=[], choices=["tailtower", "traditional"])
    parser.add_argument("--cache", type=Path, default=Path("var/benchmarks"))
    options = parser.parse_args(argv)
    check(options)
    report: dict[str, Any] = {"cores": os.cpu_count(), "load_before": round(busy_machine(), 2)}
    found = measure(options)
    report |= {key: value for key, value in found.items() if not isinstance(value, dict)}
    report |= {
        "batch": options.batch,
        "micro": options.micro,
        "rows": options.rows,
        "runs": options.runs,
    }
    report |= {key: value for key, value in found.items() if isinstance(value, dict)}
    print(json.dumps(report))


def check(options: argparse.Namespace) -> None:
    """Refuses what cannot be compared.

    Raises:
        ConfigError: More ranks than cores, or work that ranks cannot share evenly.
    """
    largest = max(options.ranks)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    if largest > cores:
        raise ConfigError(
            f"{largest} ranks on {cores} cores measure the scheduler, not the exchange",
            where="--ranks",
            fix="give no more ranks than there are cores, on Linux",
        )
    if options.micro % largest or options.batch % largest:
        raise ConfigError(
            f"{options.micro} micro-batches of {options.batch} are no equal work for {largest}",
            where="--micro, --batch",
            fix="give multiples of the number of ranks",
        )


if __name__ == "__main__":
    main()
