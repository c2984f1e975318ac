"""The plan of a run, for people to read before anything is done: `resolve_run --dry-run`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.errors import ConfigError
from tasks.lake import Lake
from tasks.plan_command import (
    FLOPS,
    LINK_BANDWIDTH,
    LOCAL_BANDWIDTH,
    MEMORY_BANDWIDTH,
    amount,
    job_of,
)
from tasks.run_spec import RUN_SPEC, RunSpec, load_run_spec
from tasks.steps import STEPS, names_of

if TYPE_CHECKING:
    from models.planning import Prediction


@dataclass(frozen=True)
class KnownSizes:
    """What the newest run with examples says about the size of the data."""

    run_id: str
    """That run."""
    days: int
    """Days it trained on."""
    table_rows: Mapping[str, int]
    """Rows of each table."""
    examples: int
    """Examples of the whole window."""
    items: int
    """Items of the corpus."""


def preview(spec: RunSpec) -> str:
    """The plan in Markdown, within the 1000 characters that Airflow's note of a run may have.

    Memory and time are those of the candidate's training by the formula of `tailtower plan`
    (docs/planning.md), with the sizes of an earlier run where there is one.

    Args:
        spec: The run, resolved but not necessarily saved.
    """
    days = spec.train_days
    lines = [
        f"**Dry run of {spec.day}: nothing was done**",
        "",
        f"- run `{spec.run_id}`: {_progress(spec)}",
        f"- trains on {days[0]} … {days[-1]} ({len(days)} days), "
        f"tests on {' … '.join(str(day) for day in sorted({spec.test_days[0], spec.day}))}",
        f"- models: {', '.join(spec.config.roles)}",
        f"- the candidate {_start(spec)}",
        f"- promotion: {spec.config.gate.promote}, {_champion(spec)}",
        *_estimates(spec, known_sizes(spec)),
    ]
    return "\n".join(lines)


def known_sizes(spec: RunSpec) -> KnownSizes | None:
    """Sizes from the newest run of the same pipeline that has made its examples."""
    lake = spec.lake()
    for run_id in sorted(lake.list_folders("runs"), reverse=True):
        if not lake.exists(f"runs/{run_id}/{RUN_SPEC}"):
            continue
        try:
            earlier = load_run_spec(f"{lake.url}/runs/{run_id}/{RUN_SPEC}")
        except ConfigError:  # of another version of the product
            continue
        found = _sizes_of(lake, earlier) if earlier.config.name == spec.config.name else None
        if found is not None:
            return found
    return None


def _sizes_of(lake: Lake, earlier: RunSpec) -> KnownSizes | None:
    result = earlier.result("examples")
    published = None if result is None else lake.find(result.outputs["examples"])
    if published is None:
        return None
    meta = published.manifest.meta
    return KnownSizes(
        run_id=earlier.run_id,
        days=len(earlier.train_days),
        table_rows=meta["table_rows"],
        examples=int(meta["train_rows"]),
        items=int(meta["num_items"]),
    )


def _progress(spec: RunSpec) -> str:
    names = [name for step in STEPS for name in names_of(step, spec)]
    done = sum(spec.result(name) is not None for name in names)
    if done == len(names):
        return "done already; *Start again* makes a new run"
    return f"{done} of {len(names)} results are there already" if done else "new"


def _start(spec: RunSpec) -> str:
    if spec.warm_start is None:
        return "starts anew"
    reads = spec.config.training.warm_start.examples
    return f"continues from `{spec.warm_start.run_id}`, on its {reads} examples"


def _champion(spec: RunSpec) -> str:
    if spec.champion is None:
        return "there is no champion yet"
    return f"against version {spec.champion.version} ({spec.champion.day})"


def _estimates(spec: RunSpec, known: KnownSizes | None) -> list[str]:
    predicted = predict_training(spec, known)
    memory = predicted.memory.total / 2**30
    nodes, ranks = spec.config.launch.min_nodes, spec.config.training.nproc
    where = f"{nodes} hosts × {ranks} ranks" if nodes > 1 else f"{ranks} ranks"
    if known is None:
        return [
            f"- memory: about {memory:.2f} GiB a rank ({where}), with a million rows in every "
            "table whose size nothing says",
            "- time: unknown before the first run of this pipeline",
        ]
    passes = spec.config.training.epochs * _share_read(spec, known)
    examples = known.examples * passes
    steps = math.ceil(examples / predicted.work.examples)
    seconds = steps * predicted.step_seconds
    return [
        f"- memory: about {memory:.2f} GiB a rank ({where})",
        f"- time: about {_duration(seconds)} of training ({steps:,} steps, "
        f"{predicted.examples_per_second:,.0f} examples/s)",
        f"- sizes of `{known.run_id}`: {known.examples:,} examples, {known.items:,} items",
    ]


def _share_read(spec: RunSpec, known: KnownSizes) -> float:
    """Days that the candidate reads, over those of the known run."""
    days = [
        day
        for day in spec.train_days
        if spec.warm_start is None
        or spec.config.training.warm_start.examples == "window"
        or day > spec.warm_start.trained_until
    ]
    return len(days) / known.days


def predict_training(spec: RunSpec, known: KnownSizes | None) -> Prediction:
    """What `tailtower plan` says about the candidate's training.

    Args:
        spec: The run.
        known: Sizes of an earlier run; without them the plan's own assumptions.
    """
    from models.planning import Cluster, Costs, predict

    config, nodes = spec.config, spec.config.launch.min_nodes
    ranks = nodes * config.training.nproc
    # The plan counts a rank's batch, the configuration that of all ranks.
    batch = max(2, config.training.batch_size // ranks)
    training = config.training.model_copy(update={"batch_size": batch})
    items = None if known is None else float(known.items)
    job, _ = job_of(
        config.model_copy(update={"training": training}), None, None, items, 1.05, "batch"
    )
    if known is not None:
        sizes = {**job.table_rows, **known.table_rows}
        rows = {name: int(sizes[name]) for name in job.table_rows}
        job = dataclasses.replace(job, table_rows=rows)
    cluster = Cluster(
        costs=Costs.of_machine(amount(FLOPS), amount(MEMORY_BANDWIDTH)),
        ranks_a_host=config.training.nproc,
        link_bandwidth=amount(LINK_BANDWIDTH),
        local_bandwidth=amount(LOCAL_BANDWIDTH),
    )
    return predict(job, cluster, nodes)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
