"""Step: gives frequent IDs rows of their own; all others share tail buckets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import date
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from tasks.lake import Lake, Output, Published
from tasks.longtail.chain import HEALTH, Chain
from tasks.longtail.count_plan import first_test_day
from tasks.longtail.storage import storage_errors
from tasks.run_spec import RunSpec, StepResult

if TYPE_CHECKING:
    from tasks.longtail.cluster import Runner


def run(spec: RunSpec) -> StepResult:
    """Makes the vocabularies of the run's first test day, and all before it that are missing.

    Returns:
        One output for each table, and `pictures` with `<table>.png` for each; facts: for each
        table its rows and the share of events that own rows cover, and `built`, the vocabularies
        that had to be made.

    Raises:
        UpstreamError: The days have not been counted.
        DataError: The IDs of a table changed their type.
        ClusterError: The Dask cluster failed.
    """
    counted = spec.require("count")
    facts: dict[str, object] = {}
    with ExitStack() as stack, storage_errors(spec.lake()):
        runner = _opened_once(spec, counted, stack)
        chains = {name: _chain(spec, counted, name, runner) for name in sorted(spec.config.tables)}
        day = first_test_day(spec)
        # While the workers merge one table, this process admits another's IDs.
        with ThreadPoolExecutor(_TABLES_AT_ONCE) as threads:
            made = threads.map(lambda chain: chain.until(day), chains.values())
            outputs = dict(zip(chains, made, strict=True))
    for name in outputs:
        health = outputs[name].manifest.meta["health"]
        facts[name] = {key: health[key] for key in ("rows", "rows_saved_share", "covered_share")}
    pictures = _draw(spec, spec.lake(), outputs)
    built = sum(chain.built for chain in chains.values())
    return StepResult.of("vocabulary", {**outputs, PICTURES: pictures}, built=built, tables=facts)


_TABLES_AT_ONCE = 2
"""Each may hold a part of a window in memory."""


def _chain(spec: RunSpec, counted: StepResult, name: str, runner: Callable[[], Runner]) -> Chain:
    counts = {
        date.fromisoformat(output.split("/")[1]): (path, counted.digests[output])
        for output, path in counted.outputs.items()
        if output.split("/")[0] == name
    }
    table, window_days = spec.config.tables[name], spec.config.data.window_days
    return Chain(spec.lake(), name, table, window_days, counts, runner)


def _opened_once(spec: RunSpec, counted: StepResult, stack: ExitStack) -> Callable[[], Runner]:
    """Opens the runner at the first call and keeps it until the stack ends."""
    lock = Lock()

    @cache
    def opened() -> Runner:
        # Dask and Polars are imported only when there is something to merge.
        from tasks.longtail.cluster import open_runner

        lake = spec.lake()
        last = sorted(counted.outputs.values(), key=lambda path: path.split("/")[2])
        window = last[-len(spec.config.tables) * spec.config.data.window_days :]
        size = sum(
            entry.bytes for path in window for entry in lake.open_published(path).manifest.files
        )
        return stack.enter_context(open_runner(spec.config.dask, size, lake))

    def runner() -> Runner:
        with lock:
            return opened()

    return runner


PICTURES = "pictures"
"""Output with the rank-frequency pictures."""
_PICTURE_FORMAT = 1


def _draw(spec: RunSpec, lake: Lake, vocabularies: Mapping[str, Published]) -> Published:
    """Pictures of the run's vocabularies only: a chain that is caught up needs none between."""

    def write(output: Output) -> None:
        from tasks.longtail.long_tail_picture import draw

        for name, vocabulary in vocabularies.items():
            health = json.loads(lake.read_text(vocabulary.file(HEALTH)))
            title = f"{spec.config.tables[name].source} before {first_test_day(spec)}"
            output.write_bytes(f"{name}.png", draw(health, f"{name}: {title}"))

    return lake.build(
        "reports/long_tail",
        first_test_day(spec),
        write,
        inputs={name: vocabulary.digest for name, vocabulary in vocabularies.items()},
        settings={"format": _PICTURE_FORMAT},
    )
