"""The users table, split by user once so that each part reads only its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tasks.longtail.cluster import Runner
from tasks.longtail.example_inputs import ExampleInputs
from tasks.longtail.exchange import Scratch, write_split
from tasks.longtail.features import FeaturePlan
from tasks.longtail.side_tables import check_delivered, check_schemas, read_rows

_DATASET = "users"


@dataclass(frozen=True)
class UsersTask:
    """Splitting of one file of the users table."""

    scratch: Scratch
    path: str
    number: int
    parts: int
    features: tuple[FeaturePlan, ...]

    @property
    def target(self) -> str:
        """Lake path of the split rows."""
        return self.scratch.file(f"users-table-{self.number:05d}")


def split_users(runner: Runner, scratch: Scratch, inputs: ExampleInputs, parts: int) -> list[str]:
    """Splits every file of the users table by user, the columns of the features only.

    Returns:
        Lake paths of the split files, oldest day first; none when no feature needs the table.

    Raises:
        DataError: The table is absent, or a column is missing or of the wrong kind.
    """
    if all(plan.source != "attribute" for plan in inputs.user_features):
        return []
    lake = scratch.lake()
    # Training must not depend on rows that came with the test days.
    check_delivered(lake, _DATASET, inputs.users_before, inputs.user_features)
    tasks = [
        UsersTask(scratch, path, number, parts, inputs.user_features)
        for number, path in enumerate(inputs.users_until)
    ]
    schemas: Sequence[pl.Schema] = runner.map("split users", split_users_file, tasks)
    check_schemas(lake, _DATASET, inputs.users_until, schemas)
    return [task.target for task in tasks]


def split_users_file(task: UsersTask) -> pl.Schema:
    """Splits one file by the hash of the user; returns the types of its columns."""
    lake = task.scratch.lake()
    rows = read_rows(lake, _DATASET, task.path, "user_id", task.features)
    write_split(lake, task.target, rows, "user_id", task.parts)
    return rows.schema
