"""Places of raw IDs among many known ones, found by a hash index that is built once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from tasks.longtail.hash_index import HashIndex


class IdLookup:
    """Finds IDs among known ones.

    Args:
        known: Distinct IDs without nulls, text or integers.
    """

    def __init__(self, known: pa.Array) -> None:
        self.type = pa.int64() if pa.types.is_integer(known.type) else known.type
        """Type that IDs are cast to."""
        places = np.arange(len(known), dtype=np.int32)
        self._index = HashIndex(_series(known.cast(self.type)), places)

    def positions(self, ids: pa.Array) -> npt.NDArray[np.int64]:
        """Place of each ID among the known ones, -1 where it is not; int64 `[N]`.

        An ID typed by hand or sent as JSON may be text where the lake has integers: whatever
        cannot be one of the known IDs is simply not found.
        """
        if pa.types.is_null(ids.type) or not len(ids):
            return np.full(len(ids), -1, dtype=np.int64)
        if ids.type != self.type:
            ids = cast_ids(ids, self.type)
        return self._index.values(_series(ids)).astype(np.int64)


def cast_ids(ids: pa.Array, wanted: pa.DataType) -> pa.Array:
    """IDs in another type; null where an ID cannot be one."""
    try:
        return ids.cast(wanted)
    except pa.ArrowInvalid:
        return pa.array([_cast_one(value, wanted) for value in ids], wanted)


def _cast_one(value: pa.Scalar, wanted: pa.DataType) -> str | int | None:
    try:
        found: str | int | None = value.cast(wanted).as_py()
    except pa.ArrowInvalid:
        return None
    return found


def _series(ids: pa.Array) -> pl.Series:
    return pl.Series(pl.from_arrow(ids))
