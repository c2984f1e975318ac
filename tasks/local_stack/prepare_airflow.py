"""Brings Airflow's database up to date; a process of its own, because Airflow is heavy to import.

`airflow db migrate` and `airflow pools set` do the same and pay 8 s of imports each.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from tasks.local_stack.settings import TRAINING_SLOTS


def prepare(marker: Path, pool: str) -> None:
    """Creates or migrates the database, adds the pool, then writes the marker.

    Args:
        marker: File that holds the version for which the database is complete.
        pool: Pool of the trainings.
    """
    if not marker.exists():
        # A first attempt that was killed left a part of a database, which nobody has used yet.
        for leftover in marker.parent.glob("airflow.db*"):
            leftover.unlink()
    from airflow.models.pool import Pool
    from airflow.utils.db import initdb

    initdb()
    Pool.create_or_update_pool(
        name=pool,
        slots=TRAINING_SLOTS,
        description="Trainings on this machine",
        include_deferred=False,
    )
    temporary = marker.with_suffix(".new")
    temporary.write_text(metadata.version("apache-airflow-core"))
    temporary.replace(marker)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), sys.argv[2])
