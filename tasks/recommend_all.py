"""The best items of every user as Parquet, made part by part on Dask's workers.

A part is written under its own name and found again when the job is started anew; when all are
there they become one published output.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from models.bundle import USERS, Recommender, read_bundle
from tasks.config import PipelineConfig, digest_of
from tasks.errors import ConfigError
from tasks.lake import Lake, Output, Published, partition_name
from tasks.longtail.cluster import open_runner
from tasks.progress import log
from tasks.promotion import require_pointer
from tasks.serving.bundles import bundle_folder, served_bundle
from tasks.serving.fallback import top_k

FOLDER = "serving/recommendations"
_FORMAT = 1
_BYTES_OF_A_SCORE = 4


@dataclass(frozen=True)
class Part:
    """Some users of a bundle, and where their items go.

    Attributes:
        lake: URL of the lake.
        bundle: Folder of the bundle.
        first: Number of the first user.
        stop: Number after the last one.
        k: Items for each.
        exclude_seen: Whether items that a user has taken are left out.
        exact: Whether every item is scored where the bundle has an index, too.
        path: Lake path of the file.
    """

    lake: str
    bundle: str
    first: int
    stop: int
    k: int
    exclude_seen: bool
    exact: bool
    path: str


def recommend_all(
    config: PipelineConfig,
    *,
    k: int = 100,
    exclude_seen: bool = True,
    exact: bool = False,
    part_users: int = 50_000,
) -> Published:
    """Writes the best items of all users that the served model knows.

    Args:
        config: The pipeline.
        k: Items for each user.
        exclude_seen: Whether items that a user has taken are left out.
        exact: Whether every item is scored where the served bundle has an index, too.
        part_users: Users of a part: what is lost when the job is stopped, and what a worker holds.

    Returns:
        Parquet files with `user_id`, `item_id` and `score` (lists, best first) and `origin`, the
        users in the bundle's order. The manifest's `meta` has `version`, `day`, `users`, `k`, and
        `from_popularity`, the number of users about whom nothing was known.

    Raises:
        ConfigError: Nothing is served yet, or the served bundle has no users.
        BundleError: The bundle is damaged.
        ClusterError: The Dask cluster failed; started again, the job goes on.
    """
    lake = Lake(config.lake)
    pointer = require_pointer(lake)
    served = served_bundle(lake, pointer)
    day = date.fromisoformat(pointer["day"])
    settings = {
        "version": pointer["version"],
        "k": k,
        "exclude_seen": exclude_seen,
        "exact": exact,
        "part_users": part_users,
        "format": _FORMAT,
    }
    inputs = {"bundle": served.digest}
    folder = bundle_folder(lake, served)
    # Once, and not by every worker.
    bundle = read_bundle(folder)
    if USERS not in bundle.parts:
        raise ConfigError(
            "the served bundle has no users",
            where=str(folder),
            fix="train a model with this version of tailtower",
        )
    users = pq.read_metadata(folder / USERS).num_rows
    # Beside the published folders, which start with `dt=`.
    key = digest_of({"inputs": inputs, "settings": settings})
    scratch = f"{FOLDER}-parts/{partition_name(day)}/{key}"
    parts = [
        Part(
            lake.url,
            str(folder),
            first,
            min(first + part_users, users),
            k,
            exclude_seen,
            exact,
            f"{scratch}/part-{number:05d}.parquet",
        )
        for number, first in enumerate(range(0, users, part_users))
    ]

    def write(output: Output) -> None:
        missing = [part for part in parts if not lake.exists(part.path)]
        log("recommend_all", users=users, parts=len(parts), done_before=len(parts) - len(missing))
        work = users * bundle.num_items * _BYTES_OF_A_SCORE
        with open_runner(config.dask, work, lake) as runner:
            runner.map("recommend to all users", write_part, missing)
        lake.fs.create_dir(lake.abspath(output.path), recursive=True)
        popular = 0
        for part in parts:
            target = f"{output.path}/{part.path.rsplit('/', 1)[-1]}"
            lake.fs.move(lake.abspath(part.path), lake.abspath(target))
            origins = lake.read_table(target, ["origin"]).column("origin")
            popular += origins.to_pylist().count("popularity")
        output.meta.update(
            version=pointer["version"],
            day=pointer["day"],
            users=users,
            k=k,
            from_popularity=popular,
        )

    published = lake.build(FOLDER, day, write, inputs=inputs, settings=settings)
    lake.delete(scratch)
    return published


def write_part(part: Part) -> None:
    """Writes the items of some users; for a worker."""
    recommender = _opened(part.bundle)
    assert recommender.users is not None
    table = recommender.users.slice(part.first, part.stop - part.first)
    indices, scores, popular = top_k(
        recommender,
        recommender.inputs(table),
        part.k,
        exclude_seen=part.exclude_seen,
        exact=part.exact,
    )
    found = indices >= 0
    offsets = pa.array([0, *found.sum(1).cumsum(0).tolist()], pa.int32())
    ids = recommender.corpus.column("item_id").take(pa.array(indices[found].numpy()))
    columns: dict[str, Any] = {
        "user_id": table.column("user_id"),
        "item_id": pa.ListArray.from_arrays(offsets, ids.combine_chunks()),
        "score": pa.ListArray.from_arrays(offsets, pa.array(scores[found].numpy())),
        "origin": pa.array(["popularity" if p else "user" for p in popular.tolist()]),
    }
    lake = Lake(part.lake)
    with lake.open_output(part.path) as stream:
        pq.write_table(pa.table(columns), stream, compression="zstd")


@lru_cache(maxsize=1)
def _opened(bundle: str) -> Recommender:
    """A bundle whose digests were checked; a worker opens it once."""
    return Recommender.load(bundle, verify=False)
