"""Interaction logs of any size with the long tail of real ones, cached between runs.

IDs follow Zipf's law cut off at the number of known IDs: rank r is drawn with a probability
proportional to `r ** -exponent`. Each rank's ID is a 64-bit hash of it, as in logs whose IDs are
hashed before they reach the lake; the hash is a bijection, so ranks never merge.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.config import digest_of


@dataclass(frozen=True)
class EventShape:
    """What decides the bytes of a synthetic log."""

    events: int = 32_000_000
    files: int = 8
    users: int = 20_000_000
    items: int = 5_000_000
    exponent: float = 1.05
    seed: int = 1
    """Another seed gives another day of the same IDs."""

    @property
    def name(self) -> str:
        """Name of the log's folder, different for every shape."""
        return f"events-{self.events}-{self.seed}-{digest_of(asdict(self))[:8]}"


def zipf_ranks(
    rng: np.random.Generator, size: int, ranks: int, exponent: float
) -> npt.NDArray[np.int64]:
    """Draws from Zipf's law bounded to `1 … ranks`.

    numpy draws from the unbounded law (rejection method of Devroye 1986); dropping what lies
    beyond the bound leaves exactly the bounded law.
    """
    drawn: list[npt.NDArray[np.int64]] = []
    missing = size
    while missing:
        batch = rng.zipf(exponent, missing + missing // 4 + 16)
        kept = batch[(batch >= 1) & (batch <= ranks)][:missing]
        drawn.append(kept)
        missing -= kept.size
    return np.concatenate(drawn)


def hashed(ranks: npt.NDArray[np.int64], salt: int) -> npt.NDArray[np.int64]:
    """SplitMix64's finalizer (Steele et al. 2014) of each rank: a bijection of 64-bit integers."""
    x = ranks.astype(np.uint64) + np.uint64(salt)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def make_events(cache: Path, shape: EventShape) -> list[Path]:
    """The files of a log: `user_id` and `item_id`, int64, without nulls.

    Args:
        cache: Folder that keeps the logs.
        shape: What to make.
    """
    folder = cache / shape.name
    paths = [folder / f"part-{number}.parquet" for number in range(shape.files)]
    if (folder / "_SUCCESS").exists():
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(paths):
        rng = np.random.default_rng([shape.seed, number])
        rows = shape.events // shape.files + (number < shape.events % shape.files)
        users = zipf_ranks(rng, rows, shape.users, shape.exponent)
        items = zipf_ranks(rng, rows, shape.items, shape.exponent)
        table = pa.table(
            {
                "user_id": pa.array(hashed(users, 0)),
                "item_id": pa.array(hashed(items, 1 << 32)),
            }
        )
        pq.write_table(table, path, row_group_size=1 << 20)
    (folder / "_SUCCESS").touch()
    return paths
