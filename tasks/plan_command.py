"""`tailtower plan`: memory, time and price of a training at any number of hosts."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.table import Table

from tasks.command_options import DEFAULT_CONFIG, ConfigOption, SetOption
from tasks.config import PipelineConfig
from tasks.config_file import load_config
from tasks.errors import ConfigError
from tasks.progress import console

if TYPE_CHECKING:
    from models.planning import Cluster, Job, Prediction

FLOPS = "45G"
"""Operations a second of a rank's matrix products, where nobody says otherwise."""
MEMORY_BANDWIDTH = "14G"
"""Bytes a second that a rank reads and writes."""
LINK_BANDWIDTH = "1.25G"
"""Bytes a second between hosts."""
LOCAL_BANDWIDTH = "1G"
"""Bytes a second between ranks of a host."""

_ASSUMED_ROWS = 1_000_000
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_AMOUNT = re.compile(r"^(\d+(?:\.\d+)?)([kMGBT]?)$")


def amount(text: str) -> float:
    """A number such as `50M` or `1.25G`.

    Raises:
        ConfigError: It is none.
    """
    match = _AMOUNT.match(text)
    if match is None:
        raise ConfigError(
            f"'{text}' is no amount", where="command line", fix="write a number such as 50M or 1.5G"
        )
    return float(match[1]) * _UNITS[match[2]]


def plan_command(
    config: ConfigOption = DEFAULT_CONFIG,
    settings: SetOption = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            help="Rows of a table, as table=50M; may be repeated. By default its max_rows."
        ),
    ] = None,
    elements: Annotated[
        list[str] | None,
        typer.Option(
            help="Mean elements of a list or history, as feature=20; may be repeated. By default "
            "half of a history's max_length, and 4."
        ),
    ] = None,
    items: Annotated[
        float | None,
        typer.Option(
            parser=amount, metavar="AMOUNT", help="Items; by default the rows of their ID's table."
        ),
    ] = None,
    exponent: Annotated[
        float, typer.Option(min=0.0, max=3.0, help="Exponent of Zipf's law that all IDs follow.")
    ] = 1.05,
    hosts: Annotated[int, typer.Option(min=1, max=10_000, help="The largest number of hosts.")] = (
        1000
    ),
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks of a host; by default training.nproc."),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Cores or GPUs of a host; by default one for each rank."),
    ] = None,
    flops: Annotated[
        float,
        typer.Option(
            parser=amount, metavar="AMOUNT", help="Operations a second of a rank's matrix products."
        ),
    ] = cast(float, FLOPS),
    memory_bandwidth: Annotated[
        float,
        typer.Option(
            parser=amount, metavar="AMOUNT", help="Bytes a second that a rank reads and writes."
        ),
    ] = cast(float, MEMORY_BANDWIDTH),
    link_bandwidth: Annotated[
        float,
        typer.Option(
            parser=amount, metavar="AMOUNT", help="Bytes a second that a host sends (and gets)."
        ),
    ] = cast(float, LINK_BANDWIDTH),
    link_latency: Annotated[
        float, typer.Option(min=0.0, help="Microseconds of a message between hosts.")
    ] = 50.0,
    local_bandwidth: Annotated[
        float,
        typer.Option(
            parser=amount, metavar="AMOUNT", help="Bytes a second between ranks of a host."
        ),
    ] = cast(float, LOCAL_BANDWIDTH),
    price: Annotated[float, typer.Option(min=0.0, help="Price of a host for an hour.")] = 0.0,
    grow: Annotated[
        Literal["accumulate", "batch"],
        typer.Option(
            help="What grows with the ranks: training.accumulate, so that an example is compared "
            "with as many others as now, or training.batch_size."
        ),
    ] = "accumulate",
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure a rank and the exchange between two on this machine, by training a "
            "little on made-up examples, instead of --flops, --memory-bandwidth and "
            "--local-bandwidth.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Size a cluster: memory of a rank, time of a step by part, throughput, efficiency, price.

    `training.batch_size` and `training.accumulate` count as what a single rank does in a
    macro-batch; every rank that is added brings as many examples. docs/planning.md has the formula.
    """
    from models.planning import Cluster, Costs, predict

    job, assumed = job_of(
        load_config(config, settings or []), rows, elements, items, exponent, grow
    )
    ranks = ranks or load_config(config, settings or []).training.nproc
    cluster = Cluster(
        costs=Costs.of_machine(flops, memory_bandwidth),
        ranks_a_host=ranks,
        cores_a_rank=min(1.0, (cores or ranks) / ranks),
        link_bandwidth=link_bandwidth,
        link_latency=link_latency * 1e-6,
        local_bandwidth=local_bandwidth,
        price=price,
    )
    if measure:
        cluster = _measured(cluster, job)
    found = [predict(job, cluster, count) for count in host_counts(hosts)]
    if as_json:
        print(json.dumps(as_dict(found, cluster, assumed)))
        return
    _show(found, cluster, assumed)


def job_of(
    config: PipelineConfig,
    rows: Sequence[str] | None,
    elements: Sequence[str] | None,
    items: float | None,
    exponent: float,
    grow: str,
) -> tuple[Job, dict[str, int]]:
    """What is planned, and the rows that had to be assumed.

    Args:
        config: The pipeline.
        rows: Rows of tables as `name=amount`.
        elements: Elements of features as `name=amount`.
        items: Items; None for the rows of their table.
        exponent: Exponent of Zipf's law.
        grow: What grows with the ranks.

    Raises:
        ConfigError: A name is unknown.
    """
    from models.expected_work import DataShape
    from models.planning import Job

    features = [*config.model.user.coded, *config.model.item.coded]
    used = {f.table for f in features}
    given = _pairs(rows, "--rows", list(config.tables))
    counts, assumed = {}, {}
    for name in (n for n in config.tables if n in used):
        vocabulary = config.tables[name].vocabulary
        own = given.get(name)
        if own is None:
            own = vocabulary.max_rows or _ASSUMED_ROWS
            assumed[name] = int(own)
        # Padding, buckets, and the IDs that own a row.
        counts[name] = int(own) + vocabulary.tail_buckets + 1
    item_table = next(n for n, t in config.tables.items() if t is config.item_table)
    lists = [f.name for f in features if f.kind in ("list", "history", "neighbours")]
    data = DataShape(
        items=int(items or counts.get(item_table, _ASSUMED_ROWS)),
        exponent=exponent,
        elements=_pairs(elements, "--elements", lists),
        hashes={name: config.tables[name].vocabulary.hashes for name in counts},
    )
    tables = {name: config.tables[name].embedding() for name in counts}
    job = Job(config.model, tables, counts, config.training, data, grow)
    return job, assumed


def _pairs(given: Sequence[str] | None, option: str, known: Sequence[str]) -> dict[str, float]:
    found = {}
    for text in given or ():
        name, separator, value = text.partition("=")
        if not separator or name not in known:
            raise ConfigError(
                f"'{text}' names none of {', '.join(known)}",
                where=option,
                fix="write name=amount",
            )
        found[name] = amount(value)
    return found


def host_counts(largest: int) -> list[int]:
    """1, 2, 4, 8, … and the largest number itself."""
    counts = [1 << n for n in range(largest.bit_length()) if 1 << n < largest]
    return [*counts, largest]


def _measured(cluster: Cluster, job: Job) -> Cluster:
    from models.calibration import measure_costs, measure_link

    costs, _ = measure_costs(job)
    link = measure_link()
    return dataclasses.replace(
        cluster, costs=costs, local_bandwidth=link.bandwidth, local_latency=link.latency
    )


def as_dict(
    found: Sequence[Prediction], cluster: Cluster, assumed: Mapping[str, int]
) -> dict[str, Any]:
    """Everything, for programs; bytes and seconds."""
    return {
        "cluster": dataclasses.asdict(cluster),
        "assumed_rows": dict(assumed),
        "hosts": [
            {
                "hosts": one.hosts,
                "ranks": one.ranks,
                "memory": {**dataclasses.asdict(one.memory), "total": one.memory.total},
                "seconds": dict(one.seconds),
                "step_seconds": one.step_seconds,
                "examples_per_step": one.work.examples,
                "examples_per_second": one.examples_per_second,
                "efficiency": one.efficiency,
                "exchanged_bytes": one.work.rows_bytes,
                "pooled_exchange_bytes": one.work.pooled_exchange_bytes,
                "price_per_million_examples": one.price,
            }
            for one in found
        ],
    }


def _show(found: Sequence[Prediction], cluster: Cluster, assumed: Mapping[str, int]) -> None:
    for name, count in assumed.items():
        console.print(
            f"table {name}: {count:,} rows are assumed (--rows {name}=…)", highlight=False
        )
    if cluster.cores_a_rank < 1:
        console.print("a host has fewer cores than ranks: they take turns", highlight=False)
    console.print(_overview(found, cluster.price))
    chosen = (found[0], found[len(found) // 2], found[-1])
    shown = list({one.hosts: one for one in chosen}.values())
    console.print(_parts(shown))
    console.print(_memory(shown))


def _overview(found: Sequence[Prediction], price: float) -> Table:
    table = Table(title="by number of hosts", title_justify="left", box=None)
    heads = ["hosts", "ranks", "memory of a rank", "step", "examples/s", "efficiency"]
    for head in [*heads, *(["price of a million"] if price else [])]:
        table.add_column(head, justify="right")
    for one in found:
        line = [
            f"{one.hosts:,}",
            f"{one.ranks:,}",
            f"{one.memory.total / 2**30:,.2f} GiB",
            f"{one.step_seconds:,.3f} s",
            f"{one.examples_per_second:,.0f}",
            f"{one.efficiency:.0%}",
        ]
        table.add_row(*line, *([f"{one.price:,.4f}"] if price else []))
    return table


def _parts(found: Sequence[Prediction]) -> Table:
    table = Table(title="a step by part, ms", title_justify="left", box=None)
    table.add_column("")
    for one in found:
        table.add_column(f"{one.hosts:,} hosts", justify="right")
    for name in found[-1].seconds:
        values = (one.seconds.get(name, 0.0) for one in found)
        table.add_row(name, *(f"{value * 1e3:,.1f}" for value in values))
    return table


def _memory(found: Sequence[Prediction]) -> Table:
    table = Table(title="memory of the fullest rank, MiB", title_justify="left", box=None)
    table.add_column("")
    for one in found:
        table.add_column(f"{one.hosts:,} hosts", justify="right")
    names = [f.name for f in dataclasses.fields(found[0].memory) if f.name != "rank"]
    for name in [*names, "total"]:
        table.add_row(name, *(f"{getattr(one.memory, name) / 2**20:,.1f}" for one in found))
    return table
