"""How long a step takes at any number of ranks, and what a training costs: `docs/planning.md`.

Light on purpose (no torch): a command line can size a cluster without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from models.config import EmbeddingTableSettings, ModelSettings, TrainingSettings
from models.expected_work import DataShape, StepWork, step_work
from models.memory_estimate import Placement, RankMemory, estimate_rank_memory, place_tables

_HOUR = 3600.0


@dataclass(frozen=True)
class Costs:
    """Seconds that a rank takes for a unit of each kind of work.

    Attributes:
        example: Reading, encoding and cutting up an example; every rank reads all of them.
        code: Finding the different rows of the codes of a macro-batch, per code.
        fetched_byte: Taking a row out of its table, per byte.
        pooled_byte: Pooling rows, and spreading the gradient over them, per byte.
        tower_flop: Matrix products of the towers.
        score_flop: Scores, loss and their gradients, per operation of the products.
        known: Finding the columns of an element of a history.
        moved_byte: Optimizer and update of rows, per byte.
        micro_batch: What a micro-batch costs however small it is.
    """

    example: float
    code: float
    fetched_byte: float
    pooled_byte: float
    tower_flop: float
    score_flop: float
    known: float
    moved_byte: float
    micro_batch: float

    @classmethod
    def of_machine(cls, flops: float, memory_bandwidth: float) -> Costs:
        """Costs derived from two figures of a rank.

        The factors are what a step of the product took on the machine of `docs/performance.md`,
        in operations and in passes over memory.

        Args:
            flops: Operations a second that large matrix products reach.
            memory_bandwidth: Bytes a second that copies read and write together.
        """
        byte = 1.0 / memory_bandwidth
        return cls(
            example=_PASSES["example"] * byte,
            code=_PASSES["code"] * byte,
            fetched_byte=_PASSES["fetched_byte"] * byte,
            pooled_byte=_PASSES["pooled_byte"] * byte,
            tower_flop=1.0 / flops,
            score_flop=_SCORE_FACTOR / flops,
            known=_PASSES["known"] * byte,
            moved_byte=_PASSES["moved_byte"] * byte,
            micro_batch=_MICRO_SECONDS,
        )


_PASSES = {
    "example": 25_000.0,
    "code": 1_200.0,
    "fetched_byte": 7.0,
    "pooled_byte": 10.0,
    "known": 2_800.0,
    "moved_byte": 38.0,
}
"""Bytes of memory traffic that would take as long as a unit of work."""
_SCORE_FACTOR = 1.0
_MICRO_SECONDS = 3e-3


@dataclass(frozen=True)
class Cluster:
    """What ranks run on.

    Attributes:
        costs: Of a rank that has its cores, or its accelerator, for itself.
        ranks_a_host: Ranks of a host.
        cores_a_rank: Share of a core or accelerator that a rank has; below 1, ranks take turns.
        link_bandwidth: Bytes a second that a host sends, and at the same time gets.
        link_latency: Seconds until a message to another host has arrived.
        local_bandwidth: Bytes a second that a rank sends to others of its host.
        local_latency: Seconds of a message inside a host.
        overlapped_reading: Whether examples are read by other cores while a rank computes.
        price: Of a host for an hour.
    """

    costs: Costs
    ranks_a_host: int = 1
    cores_a_rank: float = 1.0
    link_bandwidth: float = 1.25e9
    link_latency: float = 50e-6
    local_bandwidth: float = 2e9
    local_latency: float = 50e-6
    overlapped_reading: bool = False
    price: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """What is expected at a number of hosts.

    Attributes:
        hosts: Hosts.
        ranks: Ranks.
        memory: Of the rank that needs most.
        work: Work of a macro-batch.
        seconds: Of a macro-batch, by part.
        efficiency: Time of one rank alone with a rank's share of the examples, over this time.
        price: Of a million examples.
    """

    hosts: int
    ranks: int
    memory: RankMemory
    work: StepWork
    seconds: Mapping[str, float]
    efficiency: float
    price: float

    @property
    def step_seconds(self) -> float:
        """Time of a macro-batch."""
        return sum(self.seconds.values())

    @property
    def examples_per_second(self) -> float:
        """Throughput of all ranks."""
        return self.work.examples / self.step_seconds


@dataclass(frozen=True)
class Job:
    """What is trained; batch sizes are those of a single rank.

    Attributes:
        model: The model.
        tables: Settings of the embedding tables by name.
        table_rows: Rows of each table.
        training: The training on one rank.
        data: What is assumed of the data.
        grow: What grows with the ranks, so that each has the same examples in a macro-batch:
            `accumulate` leaves the examples that are compared with each other as they are,
            `batch` multiplies them.
    """

    model: ModelSettings
    tables: Mapping[str, EmbeddingTableSettings]
    table_rows: Mapping[str, int]
    training: TrainingSettings
    data: DataShape
    grow: str = "accumulate"

    def training_of(self, ranks: int) -> TrainingSettings:
        """The training on so many ranks."""
        key = "accumulate" if self.grow == "accumulate" else "batch_size"
        value = getattr(self.training, key) * ranks
        return self.training.model_copy(update={key: value})


def predict(job: Job, cluster: Cluster, hosts: int) -> Prediction:
    """Memory, time and price at a number of hosts."""
    ranks = hosts * cluster.ranks_a_host
    training = job.training_of(ranks)
    placement = place_tables(job.tables, job.table_rows, ranks, training.table_ranks)
    load = step_work(job.model, job.tables, job.table_rows, training, ranks, placement, job.data)
    seconds = step_seconds(load, cluster, hosts, ranks)
    total = sum(seconds.values())
    # The same examples for each rank, with nobody to talk to and nobody to share a core with.
    single = sum(step_seconds(_alone(job), replace(cluster, cores_a_rank=1.0), 1, 1).values())
    return Prediction(
        hosts=hosts,
        ranks=ranks,
        memory=_fullest(job, training, ranks, placement),
        work=load,
        seconds=seconds,
        efficiency=single / total,
        price=cluster.price * hosts * total / _HOUR / load.examples * 1e6,
    )


def _alone(job: Job) -> StepWork:
    training = job.training_of(1)
    placement = place_tables(job.tables, job.table_rows, 1)
    return step_work(job.model, job.tables, job.table_rows, training, 1, placement, job.data)


def step_seconds(load: StepWork, cluster: Cluster, hosts: int, ranks: int) -> dict[str, float]:
    """Time of a macro-batch by part; the formula of `docs/planning.md`."""
    c = cluster.costs
    slower = max(1.0, 1.0 / cluster.cores_a_rank)
    seconds = {
        "encoding": c.code * load.codes,
        "fetching rows": c.fetched_byte * (load.fetched_bytes + load.merged_bytes),
        "towers": c.tower_flop * load.tower_flops + c.pooled_byte * load.pooled_bytes,
        "choosing negatives": c.known * load.known,
        "scores and loss": c.score_flop * load.score_flops,
        "updating": c.moved_byte * load.moved_bytes + c.fetched_byte * load.merged_bytes,
        "each micro-batch": c.micro_batch * load.pools,
    }
    seconds = {name: value * slower for name, value in seconds.items()}
    reading = c.example * load.examples * slower
    if cluster.overlapped_reading:
        # Only what does not fit beside the computation is waited for.
        reading = max(0.0, reading - sum(seconds.values()))
    seconds["reading"] = reading
    if ranks == 1:
        return seconds
    rate, latency = _link(cluster, hosts, ranks, slower)
    rounds = math.ceil(math.log2(ranks))
    # Numbers, rows and gradients of rows; then the vectors of all pools there and back.
    seconds["exchanging rows"] = load.rows_bytes / rate + 4 * latency * rounds
    seconds["exchanging vectors"] = load.vector_bytes / rate + 2 * latency * rounds
    seconds["adding up towers"] = load.tower_bytes / rate + 2 * latency * rounds
    return seconds


def _link(cluster: Cluster, hosts: int, ranks: int, slower: float) -> tuple[float, float]:
    """Bytes a second of a rank to all others, and the latency of the slowest message."""
    if hosts == 1:
        return cluster.local_bandwidth / slower, cluster.local_latency * slower
    away = (ranks - cluster.ranks_a_host) / (ranks - 1)
    near = 1 - away
    outside = away * cluster.ranks_a_host / cluster.link_bandwidth
    inside = near * slower / cluster.local_bandwidth
    return 1.0 / max(outside, inside), cluster.link_latency


def _fullest(job: Job, training: TrainingSettings, ranks: int, placement: Placement) -> RankMemory:
    """Memory of the rank that holds most of the tables."""
    held = [0] * ranks
    for shards in placement.values():
        for shard in shards:
            held[shard.rank] += shard.rows * shard.columns
    fullest = max(range(ranks), key=held.__getitem__)
    # Asked about this rank alone: there may be thousands.
    own = {
        name: [shard for shard in shards if shard.rank == fullest]
        for name, shards in placement.items()
    }
    found = estimate_rank_memory(
        job.model,
        job.tables,
        job.table_rows,
        training,
        ranks,
        items=job.data.items,
        hashes=job.data.hashes,
        elements=job.data.elements,
        placement=own,
    )
    return found[fullest]
