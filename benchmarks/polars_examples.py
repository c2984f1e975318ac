"""The rival of the examples benchmark: the same examples, written with Polars lazy frames alone.

What a person who knows Polars would write: one rolling window for the histories, joins for the
codes, one sort for the shuffle. It keeps everything in memory and writes the same files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import polars_hash as plh


@dataclass(frozen=True)
class Job:
    """What is made of what.

    Attributes:
        train: Files of the training days.
        test: Files of the test day.
        vocabularies: File of each table's vocabulary and the number of its tail buckets.
        out: Folder that is written to.
        history: Longest history.
        shards: Number of shards.
        seed: Seed of the shuffle; the buckets' hash has its own.
        bucket_seed: Seed of the buckets' hash.
    """

    train: Sequence[Path]
    test: Sequence[Path]
    vocabularies: dict[str, tuple[Path, int]]
    out: Path
    history: int
    shards: int
    seed: int
    bucket_seed: int


def make_examples(job: Job) -> None:
    """Writes corpus, shards, users and test users, like the examples step."""
    train = _events(job.train)
    corpus = (
        train.group_by("item_id")
        .agg(train_count=pl.len(), train_users=pl.col("user_id").n_unique())
        .sort("train_count", "item_id", descending=[True, False])
        .with_row_index("item")
        .with_columns(pl.col("item").cast(pl.Int32))
        .collect()
    )
    _write(_encoded(job, corpus.lazy(), "item_id", "item", "iid").collect(), job.out / "items")
    user_ids = train.select("user_id").unique().sort("user_id").with_row_index("user")
    users = (
        _encoded(job, user_ids, "user_id", "user", "uid")
        .with_columns(pl.col("user").cast(pl.Int64))
        .collect()
    )
    events = (
        train.join(users.lazy(), on="user_id")
        .join(corpus.lazy().select("item_id", "item"), on="item_id")
        .sort("user", "timestamp", "item_id")
        .select("user", "item", "timestamp", "uid", weight=pl.lit(1.0, pl.Float32))
        .collect()
    )
    past = (
        events.lazy()
        .select("user", "item", n=pl.int_range(pl.len(), dtype=pl.Int64))
        .rolling("n", period=f"{job.history}i", closed="left", group_by="user")
        .agg(history="item")
        .sort("n")
        .collect()
    )
    shuffled = events.with_columns(past["history"]).sample(
        fraction=1.0, shuffle=True, seed=job.seed
    )
    for number in range(job.shards):
        first, end = (len(shuffled) * n // job.shards for n in (number, number + 1))
        _write(shuffled[first:end], job.out / "train", f"part-{number:05d}.parquet")
    known = (
        events.lazy()
        .group_by("user", maintain_order=True)
        .agg(
            history=pl.col("item").tail(job.history),
            seen=pl.col("item").unique().sort(),
            train_count=pl.len().cast(pl.Int64),
        )
        .collect()
    )
    of_users = users.lazy().join(known.lazy(), on="user", maintain_order="left")
    _write(of_users.drop("train_count").collect(), job.out / "users")
    _write(_test(job, corpus, of_users).collect(), job.out / "test")


def _events(paths: Sequence[Path]) -> pl.LazyFrame:
    frame = pl.scan_parquet(list(paths), hive_partitioning=False)
    return frame.select("user_id", "item_id", pl.col("timestamp").dt.timestamp("us"))


def _encoded(job: Job, frame: pl.LazyFrame, key: str, table: str, name: str) -> pl.LazyFrame:
    """Adds the codes: own rows by a join, buckets by the hash of the ID."""
    path, buckets = job.vocabularies[table]
    rows = pl.scan_parquet(path, hive_partitioning=False).select(pl.col("id").alias(key), "row")
    bucket = bucket_of(key, buckets, job.bucket_seed)
    joined = frame.join(rows, on=key, how="left", maintain_order="left")
    code = pl.concat_list(pl.coalesce("row", bucket)).alias(name)
    return joined.with_columns(code).drop("row")


def bucket_of(key: str, buckets: int, seed: int) -> pl.Expr:
    """Bucket row of the IDs in a column."""
    hashed = plh.col(key).cast(pl.String).nchash.xxh3_64(seed=seed)  # type: ignore[attr-defined]
    return (hashed % buckets).cast(pl.Int32) + 1


def _test(job: Job, corpus: pl.DataFrame, users: pl.LazyFrame) -> pl.LazyFrame:
    targets = (
        _events(job.test)
        .join(corpus.lazy().select("item_id", "item"), on="item_id", how="left")
        .group_by("user_id")
        .agg(targets=pl.col("item").drop_nulls().unique().sort())
        .sort("user_id")
    )
    empty = pl.lit([], pl.List(pl.Int32))
    joined = targets.join(users.drop("uid"), on="user_id", how="left", maintain_order="left")
    joined = joined.with_columns(
        pl.col("user").fill_null(-1),
        pl.col("train_count").fill_null(0),
        pl.col("history").fill_null(empty),
        pl.col("seen").fill_null(empty),
    ).with_columns(pl.col("targets").list.set_difference("seen"))
    return _encoded(job, joined, "user_id", "user", "uid")


def _write(frame: pl.DataFrame, folder: Path, name: str = "part-0.parquet") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / name, compression="zstd", row_group_size=1 << 16)
