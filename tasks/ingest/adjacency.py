"""Reads lines ``user item item …`` and gives every pair a synthetic time.

The item at position j (from 0) of a user's n items happens at day ``days * (j + r) / n`` after the
first day, where r in [0, 1) is the hash of the user. So each user's items keep their order, are
spread evenly over all days, and users with few items do not all fall on the first day.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import xxhash

from tasks.ingest.mapping import IngestMapping
from tasks.ingest.sources import MalformedRow, SourceBatch, SourceFile

COLUMNS = ("user", "item", "time")
_LINES = 4096
_DAY_US = 86_400_000_000


def read_adjacency(file: SourceFile, mapping: IngestMapping) -> Iterator[SourceBatch]:
    """Reads pairs as columns `user`, `item` (texts) and `time` (microseconds UTC).

    A line with a user and no item is malformed.
    """
    settings = mapping.adjacency
    span = settings.days * _DAY_US
    begin = int(np.datetime64(settings.first_day, "us").astype(np.int64))
    users: list[str] = []
    items: list[str] = []
    lengths: list[int] = []
    records: list[int] = []
    malformed: list[MalformedRow] = []

    def flush() -> SourceBatch:
        n = np.array(lengths, dtype=np.int64)
        line_of_pair = np.repeat(np.arange(len(users)), n)
        position = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
        shift = np.array([xxhash.xxh64_intdigest(user) / 2.0**64 for user in users])
        time = begin + np.floor((position + shift[line_of_pair]) / n[line_of_pair] * span)
        # Rounding must not carry the last item of a list into the day after the last.
        time = np.minimum(time.astype(np.int64), begin + span - 1)
        table = pa.table(
            {
                "user": pa.array(users, pa.string()).take(pa.array(line_of_pair)),
                "item": pa.array(items, pa.string()),
                "time": pa.array(time).cast(pa.timestamp("us", tz="UTC")),
            }
        )
        numbers = np.array(records, dtype=np.int64)[line_of_pair]
        batch = SourceBatch(table, numbers, is_text=True, malformed=list(malformed))
        for buffer in (users, items, lengths, records, malformed):
            buffer.clear()
        return batch

    with file.open_stream() as stream:
        text = io.TextIOWrapper(io.BufferedReader(stream), encoding=mapping.encoding)
        try:
            for number, line in enumerate(text, start=1):
                words = line.split(mapping.delimiter)
                words = [word.strip() for word in words if word.strip()]
                if len(words) < 2:
                    reason = "a user without items" if words else "empty line"
                    malformed.append(MalformedRow(number, reason, line.strip()))
                    continue
                users.append(words[0])
                items.extend(words[1:])
                lengths.append(len(words) - 1)
                records.append(number)
                if len(users) == _LINES:
                    yield flush()
        except UnicodeDecodeError as error:
            raise file.cannot_read(error) from error
    if users or malformed:
        yield flush()
