"""Who counts IDs in `benchmarks.counting`: `python -m benchmarks.counting_contenders NAME`.

A job names the Parquet files, the folder to write to, and (for the product) the lake.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.local_cluster import CORES, local_cluster
from benchmarks.measure import serve

COLUMNS = ("user_id", "item_id")
Work = Callable[[dict[str, Any]], dict[str, Any] | None]


@contextmanager
def duckdb() -> Iterator[Work]:
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads = {CORES}")
    connection.execute("SET preserve_insertion_order = false")

    def work(job: dict[str, Any]) -> None:
        for column in COLUMNS:
            target = Path(job["target"]) / f"{column}.parquet"
            connection.execute(
                f"COPY (SELECT {column} AS id, count(*) AS count FROM read_parquet(?) "
                f"GROUP BY {column}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)",
                [job["files"]],
            )

    yield work


@contextmanager
def polars() -> Iterator[Work]:
    import polars as pl

    def work(job: dict[str, Any]) -> None:
        events = pl.scan_parquet(job["files"])
        sinks = [
            events.group_by(pl.col(column).alias("id"))
            .agg(pl.len().cast(pl.Int64).alias("count"))
            .sink_parquet(Path(job["target"]) / f"{column}.parquet", compression="zstd", lazy=True)
            for column in COLUMNS
        ]
        pl.collect_all(sinks, engine="streaming")

    yield work


@contextmanager
def dask_naive() -> Iterator[Work]:
    import dask
    import dask.dataframe as dd
    from distributed import Client

    def work(job: dict[str, Any]) -> None:
        frame = dd.read_parquet(job["files"], columns=list(COLUMNS))
        writes = [
            frame[column]
            .value_counts()
            .to_frame()
            .to_parquet(f"{job['target']}/{column}", compression="zstd", compute=False)
            for column in COLUMNS
        ]
        dask.compute(*writes)  # type: ignore[attr-defined, no-untyped-call]

    with local_cluster() as address, Client(address):  # type: ignore[no-untyped-call]
        yield work


@contextmanager
def tailtower() -> Iterator[Work]:
    """The count step, and the vocabulary step when the job asks for it, on a warm cluster."""
    from benchmarks.counting_lake import spec_of
    from tasks import count, vocabulary
    from tasks.run_spec import StepResult

    def work(job: dict[str, Any]) -> dict[str, Any] | None:
        spec = spec_of(Path(job["lake"]), job["days"], address, job.get("table"))
        result = count.run(spec)
        if job.get("vocabulary"):
            spec.lake().write_text(f"{spec.folder}/count.json", result.model_dump_json())
            result = _both(result, vocabulary.run(spec))
        return {"outputs": result.outputs}

    def _both(one: StepResult, other: StepResult) -> StepResult:
        return one.model_copy(update={"outputs": {**one.outputs, **other.outputs}})

    with local_cluster() as address:
        yield work


CONTENDERS = {
    "tailtower": tailtower,
    "duckdb": duckdb,
    "polars": polars,
    "dask_naive": dask_naive,
}


def emptied(folder: Path) -> Path:
    """A folder without files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    with CONTENDERS[sys.argv[1]]() as contender:
        serve(contender)
