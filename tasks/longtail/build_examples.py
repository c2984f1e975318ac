"""The stages of example building, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from models.alias_table import build_alias_table
from tasks.config import DaskSettings
from tasks.errors import DataError
from tasks.lake import Output
from tasks.longtail.cluster import Runner, open_runner
from tasks.longtail.columns import array_of, to_arrow
from tasks.longtail.encoding import encoder_of
from tasks.longtail.events import Role, SplitTask, StatsTask, check_types, item_stats, split_file
from tasks.longtail.example_inputs import ExampleInputs
from tasks.longtail.example_parts import PartResult, PartTask, build_part
from tasks.longtail.example_shards import JoinTask, join_parts, shards_for
from tasks.longtail.example_users import split_users
from tasks.longtail.exchange import Scratch, read_part_frame, scratch_folder, write_parts
from tasks.longtail.id_hash import parts_for
from tasks.longtail.item_corpus import build_corpus, corpus_table, negative_weights
from tasks.longtail.side_tables import newest_rows

PART_BYTES = 1 << 30
"""About how much the examples of one part of the users take in memory."""
_ROW_BYTES = 64


def build_examples(output: Output, inputs: ExampleInputs, dask: DaskSettings) -> dict[str, Any]:
    """Writes all files of the examples.

    Args:
        output: Where they are written.
        inputs: What they are made from.
        dask: Where the work runs.

    Returns:
        The manifest's meta.

    Raises:
        DataError: The input cannot be used.
    """
    lake = output.lake
    parts = parts_for(inputs.rows * (_ROW_BYTES + 4 * inputs.history_length), PART_BYTES)
    with scratch_folder(lake) as scratch, open_runner(dask, inputs.bytes) as runner:
        train, test, dropped = _split(runner, scratch, inputs, parts)
        users_table = split_users(runner, scratch, inputs, parts)
        stats_tasks = [StatsTask(scratch, train, part) for part in range(parts)]
        sizes = runner.map("count items", item_stats, stats_tasks)
        rows, users = (sum(size[n] for size in sizes) for n in (0, 1))
        if rows == 0:
            raise DataError(
                "the training days hold no event with a user, an item and a time",
                where=f"{lake.url}/raw/interactions",
                fix="check the columns user_id, item_id and timestamp",
            )
        stats = [read_part_frame(lake, [task.target], 0) for task in stats_tasks]
        corpus = _write_corpus(output, scratch, inputs, stats, users)
        shards = shards_for(rows)
        tasks = []
        first_row = first_user = 0
        for part, (part_rows, part_users) in enumerate(sizes):
            tasks.append(
                PartTask(
                    scratch=scratch,
                    part=part,
                    parts=parts,
                    train_events=train,
                    test_events=test,
                    corpus=scratch.file("corpus"),
                    features=inputs.user_features,
                    vocabularies=inputs.vocabularies,
                    users=tuple(users_table),
                    users_before=len(inputs.users_before),
                    history_length=inputs.history_length,
                    first_user=first_user,
                    first_row=first_row,
                    rows=rows,
                    shards=shards,
                    seed=inputs.seed,
                )
            )
            first_row, first_user = first_row + part_rows, first_user + part_users
        results = runner.map("build examples", build_part, tasks)
        _join(runner, output, tasks, shards)
    return {
        "num_users": users,
        "num_items": corpus.height,
        "train_rows": rows,
        "shards": shards,
        "parts": parts,
        "dropped_rows": dropped,
        "history_length": inputs.history_length,
        "table_rows": dict(inputs.table_rows),
        "table_hashes": dict(inputs.table_hashes),
        **_test_numbers(results),
    }


def _split(
    runner: Runner, scratch: Scratch, inputs: ExampleInputs, parts: int
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Splits all events by user; returns the split train and test files and the dropped rows."""
    context = tuple(
        sorted({plan.column for plan in inputs.user_features if plan.source == "context"})
    )
    by_role: dict[Role, tuple[str, ...]] = {"train": inputs.train, "test": inputs.test}
    tasks = [
        SplitTask(scratch, path, role, number, parts, context, inputs.cut_us)
        for role, paths in by_role.items()
        for number, path in enumerate(paths)
    ]
    results = runner.map("split events by user", split_file, tasks)
    check_types(results, scratch.url)
    train = tuple(task.target for task in tasks if task.role == "train")
    test = tuple(task.target for task in tasks if task.role == "test")
    return train, test, sum(result.dropped for result in results)


def _write_corpus(
    output: Output,
    scratch: Scratch,
    inputs: ExampleInputs,
    stats: Sequence[pl.DataFrame],
    users: int,
) -> pl.DataFrame:
    """Writes the corpus, its index for the workers and the tables of negatives."""
    lake = output.lake
    features = inputs.item_features
    items = None
    if inputs.items or any(plan.source == "attribute" for plan in features):
        items = newest_rows(lake, "items", inputs.items, "item_id", features, title=True)
    corpus = build_corpus(stats, items)
    encoders = {
        plan.table: encoder_of(lake.url, inputs.vocabularies[plan.table], plan.table)
        for plan in features
    }
    output.write_table("items/part-0.parquet", corpus_table(corpus, features, encoders))
    table = to_arrow(corpus.select("item_id", "id_rank", "train_count"))
    write_parts(lake, scratch.file("corpus"), 1, lambda _: table)
    for name, weights in negative_weights(corpus, users).items():
        alias = build_alias_table(weights)
        columns = {"prob": alias.prob, "alias": alias.alias, "log_q": alias.log_q}
        output.write_table(
            f"negatives/{name}.parquet",
            pa.table({key: array_of(value) for key, value in columns.items()}),
        )
    return corpus


def _join(runner: Runner, output: Output, tasks: Sequence[PartTask], shards: int) -> None:
    def sources(name: str) -> tuple[str, ...]:
        return tuple(task.target(name) for task in tasks)

    url = output.lake.url
    joins = [
        JoinTask(url, sources("train"), n, output.uri(f"train/part-{n:05d}.parquet"), by_slot=True)
        for n in range(shards)
    ]
    joins += [
        JoinTask(url, sources(name), 0, output.uri(f"{name}/part-0.parquet"))
        for name in ("users", "test")
    ]
    runner.map("write shards", join_parts, joins)


def _test_numbers(results: Sequence[PartResult]) -> dict[str, Any]:
    events = sum(result.test_events for result in results)

    def share(count: int) -> float | None:
        return round(count / events, 6) if events else None

    return {
        "test_users": sum(result.test_users for result in results),
        "test_users_without_target": sum(r.test_users_without_target for r in results),
        "test_events": events,
        "unseen_item_share": share(sum(r.test_events_unseen_item for r in results)),
        "unseen_user_share": share(sum(r.test_events_unseen_user for r in results)),
    }
