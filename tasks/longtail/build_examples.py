"""The stages of example building, one after another."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tasks.config import DaskSettings
from tasks.errors import DataError
from tasks.lake import Output
from tasks.longtail.cluster import Runner, open_runner
from tasks.longtail.event_file import EventFile
from tasks.longtail.events import Role, SplitTask, StatsTask, check_types, item_stats, split_file
from tasks.longtail.example_corpus import CorpusTask, write_corpus
from tasks.longtail.example_inputs import ExampleInputs
from tasks.longtail.example_parts import PartResult, PartTask, build_part
from tasks.longtail.example_shards import JoinTask, join_parts, shards_for
from tasks.longtail.example_users import split_users
from tasks.longtail.exchange import Scratch, scratch_folder
from tasks.longtail.id_hash import parts_for

PART_BYTES = 1 << 28
"""About how much memory the building of one part of the users takes."""
_ROW_BYTES = 192
"""Memory of one train row while its part is built, as measured; lists are made shard by shard."""
SPLIT_ROWS = 1 << 22
"""Rows of a raw file that one task splits."""


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
    parts = parts_for(inputs.rows * _ROW_BYTES, PART_BYTES)
    with scratch_folder(lake) as scratch, open_runner(dask, inputs.bytes, lake) as runner:
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
        corpus = CorpusTask(
            scratch=scratch,
            stats=tuple(task.target for task in stats_tasks),
            items=inputs.items,
            features=inputs.item_features,
            vocabularies=inputs.vocabularies,
            users=users,
            output=output.path,
        )
        [num_items] = runner.map("build the corpus", write_corpus, [corpus])
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
                    corpus=corpus.index,
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
        "num_items": num_items,
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
    by_role: dict[Role, tuple[EventFile, ...]] = {"train": inputs.train, "test": inputs.test}
    # Only a local file can be read from its middle.
    step = SPLIT_ROWS if scratch.lake().is_local else sys.maxsize
    tasks = [
        SplitTask(
            scratch=scratch,
            file=file,
            first_row=first,
            rows=min(step, file.rows - first),
            role=role,
            number=0,
            parts=parts,
            context=context,
            cut_us=inputs.cut_us,
        )
        for role, files in by_role.items()
        for file in files
        for first in range(0, max(1, file.rows), step)
    ]
    tasks = [replace(task, number=number) for number, task in enumerate(tasks)]
    results = runner.map("split events by user", split_file, tasks)
    check_types(results, scratch.url)
    train = tuple(task.target for task in tasks if task.role == "train")
    test = tuple(task.target for task in tasks if task.role == "test")
    return train, test, sum(result.dropped for result in results)


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
