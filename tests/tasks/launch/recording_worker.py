"""A rank that trains slowly enough to be met in the middle, and writes down which rows it takes."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from models.config import TrainJob
from models.reader import ExampleReader, MacroBatch
from models.trainer import train
from models.worker import JsonLines
from tasks.train_worker import ERROR, leave
from tests.tasks.launch.history import ROWS, WORLD

PACE = "pace.json"
"""Seconds that every step takes at least, in the job's folder."""


def main() -> None:
    """Trains the job of a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", type=Path, required=True)
    path = parser.parse_args().job
    _record_reads(path.parent / ROWS, float(json.loads((path.parent / PACE).read_text())))
    try:
        train(TrainJob.model_validate_json(path.read_text()), JsonLines())
    except Exception as error:
        leave(error, path.parent / ERROR)


def _record_reads(folder: Path, pace: float) -> None:
    read = ExampleReader.read
    folder.mkdir(exist_ok=True)
    # The ranks of one rendezvous, and no others, meet at this address.
    world = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def recorded(self: ExampleReader, first_step: int = 0) -> Generator[MacroBatch, None, None]:
        file = folder / f"{time.time_ns()}-{rank}-{os.getpid()}.jsonl"
        with file.open("w") as log, closing(read(self, first_step)) as reading:
            print(json.dumps({WORLD: world, "rank": rank, "size": size}), file=log, flush=True)
            for macro in reading:
                rows = [
                    [int(user), int(item)]
                    for micro in macro.micro
                    for user, item in zip(micro.local.users.user, micro.local.item, strict=True)
                ]
                entry = {"step": macro.step, "time": time.time(), "rows": rows}
                print(json.dumps(entry), file=log, flush=True)
                time.sleep(pace)
                yield macro

    ExampleReader.read = recorded  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
