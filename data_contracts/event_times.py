"""Event times as microseconds since 1970, and as a person reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(column: pa.Array) -> pa.Array:
    """Microseconds since 1970; int64 columns hold them already. Finer units are cut off."""
    if pa.types.is_timestamp(column.type):
        zone = column.type.tz
        return pc.cast(pc.cast(column, pa.timestamp("us", zone), safe=False), pa.int64())
    return pc.cast(column, pa.int64())


def moment(microseconds: int) -> str:
    """A time as a table shows it."""
    try:
        return (EPOCH + timedelta(microseconds=microseconds)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return f"{microseconds} us"
