"""Last stage of the examples: the parts' rows become the files that training reads."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.lake import Lake
from tasks.longtail.exchange import read_part

ROW_GROUP = 1 << 16
"""Rows in a row group: a reader streams that much at a time."""
SHARD_ROWS = 1 << 18
"""About how many rows a shard has."""
_SHARD_MULTIPLE = 8
"""The number of shards is a multiple of this, so that common numbers of ranks divide it."""
_LONG_LISTS = ("history", "seen", "targets")
"""Columns of corpus indices: splitting their bytes makes them smaller than a dictionary does."""


def shards_for(rows: int) -> int:
    """Number of shards of so many train rows."""
    return _SHARD_MULTIPLE * -(-rows // (_SHARD_MULTIPLE * SHARD_ROWS))


@dataclass(frozen=True)
class JoinTask:
    """Writing of one final file from the parts."""

    url: str
    sources: tuple[str, ...]
    """One scratch file a part."""
    batch: int
    """Which batch of each file."""
    target: str
    """The file to be written, a lake path."""
    by_slot: bool = False
    """Whether rows are brought into the order of the column `slot`, which is left out."""


def join_parts(task: JoinTask) -> int:
    """Writes a final file; returns its rows."""
    import pyarrow.parquet as pq

    lake = Lake(task.url)
    table = read_part(lake, task.sources, task.batch)
    if task.by_slot:
        if len(task.sources) > 1:
            table = table.sort_by("slot")
        table = table.drop_columns("slot")
    long = [name for name in _LONG_LISTS if name in table.column_names]
    with lake.open_output(task.target) as stream:
        pq.write_table(
            table,
            stream,
            compression="zstd",
            row_group_size=ROW_GROUP,
            use_dictionary=[name for name in table.column_names if name not in long],
            column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in long},
        )
    return int(table.num_rows)
