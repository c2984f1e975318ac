"""Command-line options that benchmarks share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def number(text: str) -> int:
    """A number such as `32M`."""
    factor = {"k": 1_000, "M": 1_000_000}.get(text[-1], 1)
    return int(float(text.rstrip("kM")) * factor)


@contextmanager
def cache_folder(chosen: Path | None) -> Iterator[Path]:
    """The folder for logs and results: the chosen one, which stays, or one that is removed."""
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="tailtower-bench-") as folder:
        yield Path(folder)
