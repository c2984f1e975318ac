"""The stages of example building, one after another."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from tasks.config import DaskSettings
from tasks.errors import DataError
from tasks.lake import Output
from tasks.longtail.cluster import Runner, open_runner
from tasks.longtail.data_split import Role
from tasks.longtail.event_file import EventFile
from tasks.longtail.events import (
    PartStats,
    SplitTask,
    StatsTask,
    check_types,
    item_stats,
    split_file,
)
from tasks.longtail.example_corpus import CorpusTask, write_corpus
from tasks.longtail.example_inputs import ExampleInputs
from tasks.longtail.example_parts import PartResult, PartTask, build_part
from tasks.longtail.example_shards import JoinTask, join_parts, shards_for
from tasks.longtail.example_users import split_users
from tasks.longtail.exchange import Scratch, scratch_folder
from tasks.longtail.hot_users import HotUser, find_hot_users
from tasks.longtail.id_hash import parts_for
from tasks.longtail.neighbours import write_neighbours

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
        hot: tuple[HotUser, ...] = ()
        if parts > 1 and inputs.user_counts:
            most = PART_BYTES // _ROW_BYTES
            hot = find_hot_users(runner, lake, inputs.user_counts, parts, most)
        train, test, dropped = _split(runner, scratch, inputs, parts, hot)
        users_table = split_users(runner, scratch, inputs, parts)
        stats_tasks = [
            replace(task, ages_from_us=inputs.ages_from_us, half_life_days=inputs.half_life_days)
            for task in _stats_tasks(scratch, train, parts, hot, inputs.history_length)
        ]
        sizes = runner.map("count items", item_stats, stats_tasks)
        rows, users = sum(size.rows for size in sizes), sum(size.users for size in sizes)
        if rows == 0:
            raise DataError(
                "the training days hold no event with a user, an item and a time",
                where=f"{lake.url}/raw/interactions",
                fix="check the columns user_id, item_id and timestamp",
            )
        corpus = CorpusTask(
            scratch=scratch,
            stats=tuple(task.target for task in stats_tasks[:parts]),
            hot=hot,
            items=inputs.items,
            features=inputs.item_features,
            vocabularies=inputs.vocabularies,
            users=users,
            output=output.path,
            owners=inputs.neighbours_own,
        )
        [num_items] = runner.map("build the corpus", write_corpus, [corpus])
        shards = shards_for(rows)
        task = PartTask(
            scratch=scratch,
            part=0,
            parts=parts,
            train_events=train,
            test_events=test,
            corpus=corpus.index,
            features=inputs.user_features,
            vocabularies=inputs.vocabularies,
            users=tuple(users_table),
            users_before=len(inputs.users_before),
            history_length=inputs.history_length,
            history=inputs.history,
            first_user=0,
            first_row=0,
            rows=rows,
            shards=shards,
            seed=inputs.seed,
        )
        tasks = _part_tasks(task, sizes, hot)
        results = runner.map("build examples", build_part, tasks)
        if inputs.neighbours:
            write_neighbours(
                runner,
                scratch,
                corpus=corpus.unfinished,
                users=[task.target("users") for task in tasks if task.slice_of is None],
                pairs=sum(result.pairs for result in results),
                features=inputs.neighbours,
                output=output.path,
            )
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


def _stats_tasks(
    scratch: Scratch,
    events: tuple[str, ...],
    parts: int,
    hot: Sequence[HotUser],
    history_length: int,
) -> list[StatsTask]:
    """One task for each part, then one for each slice."""
    tasks = [
        StatsTask(
            scratch, events, part, hot=tuple(user.user_id for user in hot if user.home == part)
        )
        for part in range(parts)
    ]
    tail = max(1, history_length)
    return tasks + [
        StatsTask(scratch, events, number, tail=tail) for user in hot for number in user.slices
    ]


def _part_tasks(
    task: PartTask, sizes: Sequence[PartStats], hot: Sequence[HotUser]
) -> list[PartTask]:
    """One task for each part, then one for each slice, with their first users and rows."""
    first_rows = list(accumulate((size.rows for size in sizes), initial=0))
    first_users = list(accumulate((size.users for size in sizes), initial=0))
    tasks = []
    for part in range(task.parts):
        at_home = tuple(user for user in hot if user.home == part)
        first_user = first_users[part]
        tasks.append(
            replace(task, part=part, first_row=first_rows[part], first_user=first_user, hot=at_home)
        )
        for user, rank in zip(at_home, sizes[part].hot_ranks, strict=True):
            tasks += [
                replace(
                    task,
                    part=number,
                    first_row=first_rows[number],
                    first_user=first_user + rank,
                    slice_of=user,
                )
                for number in user.slices
            ]
    return sorted(tasks, key=lambda each: each.part)


def _split(
    runner: Runner,
    scratch: Scratch,
    inputs: ExampleInputs,
    parts: int,
    hot: tuple[HotUser, ...],
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
            split=inputs.split,
            hot=hot if role == "train" else (),
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
        chosen = tasks if name == "train" else [task for task in tasks if task.slice_of is None]
        return tuple(task.target(name) for task in chosen)

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
