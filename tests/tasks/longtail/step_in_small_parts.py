"""One step in a process of its own, its small input split as if it were large.

`python -m tests.tasks.longtail.step_in_small_parts SECONDS STEP --run-spec URI` sleeps that long
in each task of a stage that reads a raw file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tasks.cli import main
from tasks.longtail import build_examples, counting, day_counts, window_merge

SIZES: tuple[tuple[Any, str, int], ...] = (
    (day_counts, "ROWS_PER_PART", 40),
    (window_merge, "ROWS_PER_PART", 25),
    (window_merge, "ROWS_TO_KEEP", 1),
    (build_examples, "PART_BYTES", 25_000),
)


@contextmanager
def small_parts() -> Iterator[None]:
    """Lets small inputs have many parts."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, size in SIZES:
            patch.setattr(module, name, size)
        yield


def slowly(seconds: float, function: Callable[[Any], Any], item: Any) -> Any:
    """Calls a function after a while."""
    time.sleep(seconds)
    return function(item)


if __name__ == "__main__":
    pause = float(sys.argv[1])
    if pause:
        for module, name in ((counting, "count_file"), (build_examples, "split_file")):
            setattr(module, name, partial(slowly, pause, getattr(module, name)))
    with small_parts():
        raise SystemExit(main(["step", *sys.argv[2:]]))
