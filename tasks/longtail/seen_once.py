"""The IDs that a day saw exactly once, in a count-min sketch in place of the day's count table.

In a long tail most of a day's IDs occur once, and nearly none of them ever owns a row. With
`seen_once: sketch` they are not listed: each part of a day's counts has a sketch of them beside
it (Cormode and Muthukrishnan, J. Algorithms 2005, by Apache DataSketches). A window asks every
day's sketches about the IDs that some day of the window counted, those seen twice or more on it.

A sketch holds an ID once or not at all, so what it is asked for is a yes or a no. Who is in it is
always found. N IDs get `e * N` buckets and `ln(1 / (1 - confidence))` hashes, so an absent one is
found with a probability of at most `1 - confidence`: in each row of buckets it meets one of the N
with a probability of at most `1 / e`. Hence an ID that a day of the window counted is never
counted too low, and on each day without it too high, by one, with at most that probability; an
ID that no day of the window counted does not exist for the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import ConfigError, LakeError
from tasks.lake import Lake, Published
from tasks.longtail.columns import from_arrow
from tasks.longtail.id_hash import PARTITION_SEED, hash_ids, integers_of, partition_of

if TYPE_CHECKING:
    from tasks.longtail.window_parts import CountFile

_CODEC = "zstd"
"""Most buckets are 0 and the others hold small numbers: a sketch shrinks to about a seventeenth."""
_BLOCK = 1 << 16
"""IDs that are Python objects at once."""


def count_min_sketch() -> Any:
    """The library's class.

    Raises:
        ConfigError: The library is not installed.
    """
    try:
        from datasketches import count_min_sketch
    except ImportError as error:
        raise ConfigError(
            "IDs seen once shall go into a sketch, but Apache DataSketches is not installed",
            where="tables: seen_once: sketch",
            fix="install tailtower[sketch], for Dask's workers too, or set seen_once: exact",
        ) from error
    return count_min_sketch


def sketch_of(ids: pl.Series, confidence: float) -> Any:
    """A sketch of different IDs.

    Args:
        ids: `[N]`, without nulls; their order does not matter.
        confidence: Probability that an ID which is not among them is not found.
    """
    kind = count_min_sketch()
    buckets = kind.suggest_num_buckets(1 / max(len(ids), 1))
    sketch = kind(kind.suggest_num_hashes(confidence), buckets)
    deque(map(sketch.update, chain.from_iterable(_keys_in_blocks(ids))), maxlen=0)
    return sketch


def found_in(sketch: Any, ids: pl.Series) -> npt.NDArray[np.bool_]:
    """Whether each ID is found in a sketch, `[N]`."""
    keys = chain.from_iterable(_keys_in_blocks(ids))
    return np.fromiter(map(sketch.get_estimate, keys), np.float64, len(ids)) >= 1


def _keys_in_blocks(ids: pl.Series) -> Iterator[list[int]]:
    """Signed 64-bit numbers that stand for the IDs; the library would pass over empty text."""
    numbers = ids if ids.dtype.is_integer() else hash_ids(ids, PARTITION_SEED)
    keys = integers_of(numbers).view(np.int64)
    for start in range(0, keys.size, _BLOCK):
        yield keys[start : start + _BLOCK].tolist()


def sketch_beside(path: str) -> str:
    """Path of the sketch that belongs to a file of counts."""
    return path.removesuffix(".parquet") + ".sketch"


def write_apart(lake: Lake, path: str, counts: pa.Table, confidence: float) -> tuple[pa.Table, int]:
    """Writes a sketch of the IDs that were counted once.

    Args:
        lake: The lake.
        path: Lake path of the file that the other IDs go to.
        counts: `id` and `count` of different IDs.
        confidence: See `sketch_of`.

    Returns:
        The other IDs, and how many are in the sketch, by its own account.
    """
    once = pc.equal(counts["count"], 1)
    sketch = sketch_of(from_arrow(counts.filter(once))["id"], confidence)
    target = sketch_beside(path)
    with lake.open_output(target) as stream, pa.CompressedOutputStream(stream, _CODEC) as packed:
        packed.write(sketch.serialize())
    return counts.filter(pc.invert(once)), int(sketch.total_weight)


def read_sketch(lake: Lake, path: str) -> Any:
    """Reads the sketch that belongs to a file of counts.

    Raises:
        LakeError: It is damaged.
    """
    source = sketch_beside(path)
    with lake.open_input(source) as stream:
        try:
            with pa.CompressedInputStream(stream, _CODEC) as packed:
                return count_min_sketch().deserialize(packed.read())
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            raise LakeError(
                f"not a readable sketch: {error}",
                where=f"{lake.url}/{source}",
                fix="remove the day's counts and run the step again",
            ) from error


def has_sketches(counts: Published) -> bool:
    """Whether a day's counts leave the IDs seen once to sketches."""
    return "seen_once" in counts.manifest.meta


def is_seen_once(lake: Lake, counts: Published, key: pl.Series) -> bool:
    """Whether a day's sketches know an ID, `[1]`; with their error."""
    part = int(partition_of(key, int(counts.manifest.meta["parts"]))[0])
    return bool(found_in(read_sketch(lake, counts.tables()[part]), key)[0])


def rows_seen_once(
    lake: Lake, files: Sequence[CountFile], counted: Sequence[pl.DataFrame]
) -> list[pl.DataFrame]:
    """What the IDs that some day counted have on the days that saw them once.

    Args:
        lake: The lake.
        files: The window's files, each with a sketch beside it.
        counted: What each of them lists: `id`, `units`, `last_seen`.

    Returns:
        Frames of the same columns.
    """
    known = pl.concat([frame.select("id") for frame in counted if frame.height] or counted[:1])
    known = known.select("id").unique(maintain_order=True)
    rows = []
    for file, frame in zip(files, counted, strict=True):
        asked = known
        if frame.height:
            asked = known.join(frame, on="id", how="anti", maintain_order="left")
        ids = asked["id"].filter(partition_of(asked["id"], file.parts) == file.part)
        if len(ids):
            once = ids.filter(pl.Series(found_in(read_sketch(lake, file.path), ids)))
            rows.append(
                once.to_frame("id").with_columns(
                    pl.lit(file.units, pl.Int64).alias("units"),
                    pl.lit(file.day).alias("last_seen"),
                )
            )
    return rows
