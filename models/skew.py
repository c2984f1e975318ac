"""Finds out why some steps take longer than others, and which rank does more than its share.

Every rank looks up rows, and applies gradients, for all others. A table that lies whole on one
rank makes that rank's part of a step as long as the table is busy: where its use comes in bursts,
so do long steps. An ID that is hot, on the other hand, is fetched once a macro-batch and rank,
however often it occurs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from models import collectives
from models.step_load import StepLoad

WINDOW = 500
_FEWEST = 20  # steps, below which a percentile says nothing
_SLOW = 1.5  # times the median
_MORE = 1.3  # times as much as in other steps, or as another rank
_UNEVEN = 1.5  # the busiest rank's bytes over the mean
_WAITS = 0.2  # share of a step
_HOT = 0.05  # share of a table's codes that are one row's

Floats = npt.NDArray[np.float64]
HotRow = tuple[int, float]
"""A row, and its share of the codes of its table."""


@dataclass(frozen=True)
class Steps:
    """What S steps of N ranks were like, with T tables.

    Attributes:
        seconds: Time of each step on each rank `[S, N]`.
        busy: Processor time of the rank's own thread in it `[S, N]`. On machines with a core for
            each rank, the busiest rank's is the least that a step can take.
        wait: Part of it in which the rank waited for others before the exchange `[S, N]`.
        bytes: Bytes that each rank served `[S, N, T]`; see `StepLoad`.
        tables: Names of the tables.
        sharding: How each is spread.
        hot: The row that was most frequent in a macro-batch of a rank, by table.
    """

    seconds: Floats
    busy: Floats
    wait: Floats
    bytes: Floats
    tables: Sequence[str]
    sharding: Mapping[str, str]
    hot: Mapping[str, HotRow]

    @property
    def spread(self) -> float:
        """99th percentile of the time of a step over the median; the slowest rank counts."""
        return spread(self.seconds)

    @property
    def unevenness(self) -> float:
        """Bytes of the busiest rank over the mean of the ranks."""
        served = self.bytes.sum((0, 2))
        return float(served.max() / max(served.mean(), 1.0))


@dataclass(frozen=True)
class Finding:
    """What is wrong.

    Attributes:
        cause: `hot table`, `hot rows`, `slow rank` or `all ranks`.
        text: One sentence.
        rank: The rank that others wait for, where there is one.
        table: The table that makes it so, where there is one.
    """

    cause: str
    text: str
    rank: int | None = None
    table: str | None = None


def spread(seconds: Floats) -> float:
    """99th percentile over the median of the slowest rank's time `[S, N]`."""
    slowest = seconds.max(1)
    return float(np.percentile(slowest, 99) / max(np.median(slowest), 1e-9))


def diagnose(steps: Steps) -> list[Finding]:
    """What makes some steps, or one rank, slower than the rest; nothing where all is even."""
    seconds = steps.seconds.max(1)
    slow = seconds > _SLOW * np.median(seconds)
    findings = []
    if slow.any() and not slow.all():
        findings.append(_of_spikes(steps, slow))
    if steps.unevenness > _UNEVEN:
        served = steps.bytes.sum(0)
        rank = int(served.sum(1).argmax())
        table = int((served[rank] - served.mean(0)).argmax())
        if not any((f.rank, f.table) == (rank, steps.tables[table]) for f in findings):
            findings.append(_of_a_table(steps, rank, table, "In all steps"))
    return findings


def _of_spikes(steps: Steps, slow: npt.NDArray[np.bool_]) -> Finding:
    when = f"{slow.sum()} of {len(slow)} steps{_rhythm(slow)} take over {_SLOW:g} times the median"
    more = steps.bytes[slow].mean(0) - steps.bytes[~slow].mean(0)
    load, usual = steps.bytes[slow].sum(2).mean(0), steps.bytes[~slow].sum(2).mean(0)
    rank = int(more.sum(1).argmax())
    others = np.delete(load, rank).mean() if len(load) > 1 else load[rank]
    if load[rank] > _MORE * usual[rank] and load[rank] > _MORE * others:
        return _of_a_table(steps, rank, int(more[rank].argmax()), when, slow)
    waits = (steps.wait[slow] / steps.seconds[slow].max(1, keepdims=True)).mean(0)
    rank = int(waits.argmin())
    if len(waits) > 1 and np.delete(waits, rank).max() > _WAITS + waits[rank]:
        text = (
            f"{when}: the others wait for rank {rank}, which serves no more than they do. Its "
            "machine, or what else runs there, is slow"
        )
        return Finding("slow rank", text, rank)
    growth = load.mean() / max(usual.mean(), 1.0)
    cause = "a checkpoint, validation, or what else their machines do"
    if growth > _MORE:
        cause = f"every rank serves {growth:.1f} times as much as in the others, for larger batches"
    return Finding("all ranks", f"{when}, on all ranks alike: {cause}")


def _of_a_table(
    steps: Steps,
    rank: int,
    table: int,
    when: str,
    chosen: npt.NDArray[np.bool_] | None = None,
) -> Finding:
    served = (steps.bytes if chosen is None else steps.bytes[chosen]).mean(0)
    name = steps.tables[table]
    way = steps.sharding[name]
    share = served[rank, table] / max(served[:, table].sum(), 1.0)
    text = (
        f"{when}: rank {rank} serves {served[rank].sum() / 2**20:.1f} MiB a step, "
        f"{served[rank].sum() / max(served.sum(1).mean(), 1.0):.2f} times the mean of the ranks, "
        f"{served[rank, table] / max(served[rank].sum(), 1.0):.0%} of it for table '{name}' "
        f"({way}), of which it serves {share:.0%}"
    )
    if (hot := steps.hot.get(name)) and hot[1] >= _HOT:
        text += (
            f"; its hottest row, {hot[0]}, is {hot[1]:.0%} of its codes, and is exchanged once a "
            "macro-batch and rank"
        )
    if "row_wise" in way:
        return Finding(
            "hot rows",
            f"{text}. Its frequent rows lie together; `sharding: column_wise` gives every rank "
            "a part of each",
            rank,
            name,
        )
    return Finding(
        "hot table",
        f"{text}. A hot table: `sharding: column_wise` gives every rank a part of each row",
        rank,
        name,
    )


def _rhythm(slow: npt.NDArray[np.bool_]) -> str:
    """How regularly slow steps come, where they do."""
    gaps = np.diff(np.flatnonzero(slow))
    if len(gaps) < 3:
        return ""
    usual = int(np.median(gaps))
    regular = np.mean(np.abs(gaps - usual) <= max(1, usual // 10)) >= 0.7
    return f", one in {usual}," if regular and usual > 1 else ""


class SkewWatch:
    """Remembers the latest steps of this rank, and tells what all ranks' steps were like.

    Args:
        tables: Names of the tables that are spread, in the order of `StepLoad.bytes`.
        sharding: How each is spread.
    """

    def __init__(self, tables: Sequence[str], sharding: Mapping[str, str]) -> None:
        self._tables = list(tables)
        self._sharding = sharding
        self._steps: deque[tuple[float, float, StepLoad, Mapping[str, HotRow]]] = deque(
            maxlen=WINDOW
        )

    def add(self, seconds: float, busy: float, load: StepLoad, hot: Mapping[str, HotRow]) -> None:
        """Counts a step of this rank.

        Args:
            seconds: Its time.
            busy: Processor time of this thread in it.
            load: What it asked of the ranks.
            hot: The most frequent row of each table.
        """
        self._steps.append((seconds, busy, load, hot))

    def steps(self) -> Steps | None:
        """The latest steps of all ranks, or None while there are few; a collective."""
        if len(self._steps) < _FEWEST:
            return None
        hot: dict[str, HotRow] = {}
        for _, _, _, found in self._steps:
            _keep_hottest(hot, found)
        own = np.array([[seconds, busy, load.wait] for seconds, busy, load, _ in self._steps])
        every: list[tuple[Floats, dict[str, HotRow]]] = [(own, hot)]
        if collectives.world_size() > 1:
            every = every * collectives.world_size()
            dist.all_gather_object(every, (own, hot))
            for _, found in every:
                _keep_hottest(hot, found)
        times = np.stack([of_rank for of_rank, _ in every], axis=1)
        served = np.stack([load.bytes.numpy() for _, _, load, _ in self._steps]).astype(np.float64)
        return Steps(
            times[..., 0], times[..., 1], times[..., 2], served, self._tables, self._sharding, hot
        )


def report(steps: Steps) -> str:
    """What an engineer wants to read about the steps."""
    head = (
        f"step time p99/p50 {steps.spread:.2f}, busiest rank serves {steps.unevenness:.2f} times "
        f"the mean of {steps.seconds.shape[1]} ranks, last {len(steps.seconds)} steps"
    )
    return "\n".join([head, *(finding.text for finding in diagnose(steps))])


def _keep_hottest(known: dict[str, HotRow], found: Mapping[str, HotRow]) -> None:
    for table, (row, share) in found.items():
        if share > known.get(table, (0, 0.0))[1]:
            known[table] = (row, share)
