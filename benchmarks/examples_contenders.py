"""Who does the work in `benchmarks.examples`: `python -m benchmarks.examples_contenders NAME`.

`tailtower` and `polars` make examples. `codes` and `join` look up the same IDs, a batch at a time,
with one thread each: `codes` by the product's encoder, to codes; `join` by `DataFrame.join`, to
the rows of the IDs that own one; `join_codes` goes on to the bucket rows of all others, so that
it ends with the encoder's codes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.local_cluster import local_cluster
from benchmarks.measure import serve

if TYPE_CHECKING:
    import polars as pl

    from tasks.longtail.encoding import Encoder

Work = Callable[[dict[str, Any]], dict[str, Any] | None]
BATCH = 1 << 20
"""IDs that are looked up at a time."""
LOOK_UPS = ("codes", "join", "join_codes")


@contextmanager
def tailtower() -> Iterator[Work]:
    """All stages of the examples step, on a warm cluster."""
    from tasks.config import DaskSettings
    from tasks.lake import Output
    from tasks.longtail.build_examples import build_examples
    from tasks.longtail.example_inputs import gather_inputs
    from tasks.run_spec import load_run_spec

    def work(job: dict[str, Any]) -> None:
        spec = load_run_spec(job["spec"])
        output = Output(spec.lake(), job["out"])
        build_examples(output, gather_inputs(spec), DaskSettings(scheduler=address))

    with local_cluster() as address:
        yield work


@contextmanager
def polars() -> Iterator[Work]:
    """The same files by Polars alone."""
    from benchmarks.polars_examples import Job, make_examples

    def work(job: dict[str, Any]) -> None:
        files = {name: [Path(path) for path in job[name]] for name in ("train", "test")}
        tables = {name: (Path(path), n) for name, (path, n) in job["vocabularies"].items()}
        make_examples(Job(**{**job, **files, "vocabularies": tables, "out": Path(job["out"])}))

    yield work


@contextmanager
def look_up(name: str) -> Iterator[Work]:
    """One way from IDs to codes; what it needs to be built once is built before it is timed."""
    import polars as pl

    from benchmarks.polars_examples import bucket_of

    @cache
    def prepared(spec: str, text: bool) -> tuple[list[pl.Series], Encoder, pl.DataFrame]:
        return _prepared(spec, text)

    def work(job: dict[str, Any]) -> dict[str, Any]:
        batches, encoder, owners = prepared(job["spec"], job["text"])
        policy = encoder.vocabulary.policy
        total = 0
        if job.get("prepare"):
            return {"ids": sum(map(len, batches))}
        for batch in batches:
            if name == "codes":
                total += int(encoder.codes(batch).sum(dtype="int64"))
                continue
            joined = batch.to_frame("id").join(owners, on="id", how="left", maintain_order="left")
            codes = joined["row"]
            if name == "join_codes":
                bucket = bucket_of("id", policy.tail_buckets, policy.seed)
                codes = joined.select(pl.coalesce("row", bucket).alias("row"))["row"]
            total += int(codes.cast(pl.Int64).sum() or 0)
        return {"ids": sum(map(len, batches)), "total": total}

    yield work


def _prepared(uri: str, text: bool) -> tuple[list[pl.Series], Encoder, pl.DataFrame]:
    """The users of the training events in batches, the encoder, and the vocabulary as a frame."""
    import polars as pl

    from tasks.longtail.encoding import Encoder
    from tasks.longtail.vocabulary_table import Vocabulary, read_vocabulary
    from tasks.run_spec import load_run_spec

    spec = load_run_spec(uri)
    lake = spec.lake()
    known = read_vocabulary(lake, spec.output("vocabulary", "user"))
    folders = [lake.local_path(f"raw/interactions/dt={day}") for day in spec.train_days]
    files = [path for folder in folders for path in sorted(folder.glob("*.parquet"))]
    ids = pl.concat([pl.read_parquet(path, columns=["user_id"])["user_id"] for path in files])
    table = known.table
    if text:
        ids, table = ids.cast(pl.String), table.with_columns(pl.col("id").cast(pl.String))
    batches = [ids.slice(first, BATCH) for first in range(0, len(ids), BATCH)]
    return batches, Encoder(Vocabulary(known.policy, table), "user"), table.select("id", "row")


CONTENDERS = {"tailtower": tailtower, "polars": polars}


def emptied(folder: Path) -> Path:
    """A folder that is not there."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


if __name__ == "__main__":
    chosen = sys.argv[1]
    with look_up(chosen) if chosen in LOOK_UPS else CONTENDERS[chosen]() as contender:
        serve(contender)
