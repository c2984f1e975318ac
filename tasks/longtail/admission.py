"""Which IDs own a row tomorrow: a pure function of yesterday's vocabulary and the counts.

An ID is admitted when its decayed count reaches `min_count` and stays until it falls below
`keep_count` or has not been seen for `ttl_days`. `coverage` replaces `min_count`, `max_rows`
caps the number of owners; under both, an owner competes with its count raised by
`min_count / keep_count`, which is the same head start that hysteresis gives it otherwise.
"""

from __future__ import annotations

from datetime import date

import numpy as np
import numpy.typing as npt
import polars as pl

from tasks.config import VocabularySettings
from tasks.errors import DataError
from tasks.longtail.id_hash import integers_of, place_integers
from tasks.longtail.vocabulary_table import Changes, Vocabulary, empty_table
from tasks.longtail.window import UNIT, is_recent

_ORDER = ("strength", "units", "id")
_DESCENDING = (True, True, False)


def next_vocabulary(
    previous: Vocabulary | None,
    counts_window: pl.DataFrame,
    policy: VocabularySettings,
    day: date,
    total_units: int | None = None,
    *,
    only_changes: bool = False,
) -> Vocabulary:
    """The vocabulary of a day.

    Args:
        previous: The vocabulary of the day before; None for the first one.
        counts_window: `id`, `units` and `last_seen` of the IDs seen in the window, in any order;
            those that cannot own a row may be left out. All days lie before `day`.
        policy: The settings.
        day: Day that the vocabulary is for.
        total_units: Units of all IDs of the window; by default nothing was left out.
        only_changes: Whether owners that `counts_window` lacks have the count and day of
            `previous`; otherwise they have left the window.

    Raises:
        DataError: The IDs are of another type than those of the previous vocabulary.
    """
    before = _owners_before(previous, counts_window)
    candidates = _candidates(before, counts_window, policy, day, only_changes)
    if total_units is None:
        total_units = int(counts_window["units"].sum() or 0)
    admitted = _admit(candidates, total_units, policy)
    return _place(before, admitted, policy, day)


def _owners_before(previous: Vocabulary | None, window: pl.DataFrame) -> pl.DataFrame:
    dtype = window.schema["id"]
    if previous is None or previous.table.is_empty():
        return empty_table(dtype)
    known = previous.table.schema["id"]
    if window.is_empty():
        return previous.table
    if known != dtype:
        raise DataError(
            f"the IDs changed their type from {known} to {dtype}",
            fix="deliver all days with one type, or start a new lake",
        )
    return previous.table


def _candidates(
    before: pl.DataFrame,
    window: pl.DataFrame,
    policy: VocabularySettings,
    day: date,
    only_changes: bool,
) -> pl.DataFrame:
    """IDs that may own a row, with `units`, `row` (null unless owner) and `strength`."""
    needed = 1 if policy.coverage is not None else policy.min_count * UNIT
    at = _places_among(window["id"], before["id"]) if window.height else None
    # Exact: without decay a count is a whole number.
    known = (pl.col("count") * UNIT).cast(pl.Int64) if only_changes else pl.lit(0, pl.Int64)
    owned = np.zeros(window.height, dtype=bool)
    if at is None:
        owners = before.with_columns(known.alias("units"))
    else:
        there = at >= 0
        owned[at[there]] = True
        found = {"units_now": window["units"], "seen_now": window["last_seen"].to_physical()}
        taken = {name: column.to_numpy().take(at, mode="clip") for name, column in found.items()}
        owners = before.hstack(pl.DataFrame(taken)).with_columns(
            pl.when(pl.Series(there)).then("units_now").otherwise(known).alias("units"),
            pl.when(pl.Series(there))
            .then(pl.max_horizontal("last_seen", pl.col("seen_now").cast(pl.Date)))
            .otherwise("last_seen")
            .alias("last_seen"),
        )
    floor = 0.0 if policy.coverage is not None else policy.kept_from * UNIT
    owners = owners.select("id", "units", "last_seen", "row", "since")
    owners = owners.filter(pl.col("units") >= floor)
    others = window.filter((pl.col("units") >= needed) & pl.Series(~owned)).select(
        pl.col("id").cast(before.schema["id"]),
        "units",
        "last_seen",
        pl.lit(None, pl.Int32).alias("row"),
        pl.lit(None, pl.Date).alias("since"),
    )
    # Under a head start without bound (keep_count 0) an owner never yields to a newcomer.
    lead = float(policy.min_count / policy.kept_from) if policy.kept_from > 0 else float("inf")
    strength = pl.col("units").cast(pl.Float64)
    raised = strength * lead if np.isfinite(lead) else pl.lit(float("inf"))
    both = pl.concat([owners, others]).with_columns(
        pl.when(pl.col("row").is_null()).then(strength).otherwise(raised).alias("strength")
    )
    if policy.ttl_days is not None:
        both = both.filter(is_recent(policy, day))
    return both


def _places_among(ids: pl.Series, wanted: pl.Series) -> npt.NDArray[np.int64]:
    """Where each of some IDs is among others, -1 where it is not, int64 `[M]`.

    Args:
        ids: Different IDs, `[N]`; integers are found fastest when they are ordered by place.
        wanted: Different IDs, `[M]`.
    """
    if not ids.dtype.is_integer():
        known = ids.to_frame("id").with_row_index("at")
        joined = wanted.to_frame("id").join(known, on="id", how="left", maintain_order="left")
        return joined["at"].cast(pl.Int64).fill_null(-1).to_numpy()
    # A join of random integers waits for the memory at every row; sorted ones are met in passing.
    places, asked = place_integers(integers_of(ids)), place_integers(integers_of(wanted))
    order = None
    if (places[1:] < places[:-1]).any():
        order = np.argsort(places)
        places = places[order]
    turn = np.argsort(asked)
    asked = asked[turn]
    met = np.searchsorted(places, asked)
    hit = places.take(met, mode="clip") == asked
    if order is not None:
        met = order.take(met, mode="clip")
    found = np.empty(asked.size, dtype=np.int64)
    found[turn] = np.where(hit, met, -1)
    return found


def _admit(candidates: pl.DataFrame, total: int, policy: VocabularySettings) -> pl.DataFrame:
    if policy.coverage is None and policy.max_rows is None:
        return candidates
    ordered = candidates.sort(_ORDER, descending=_DESCENDING)
    if policy.coverage is not None:
        covered_before = pl.col("units").cum_sum() - pl.col("units")
        ordered = ordered.filter(covered_before < policy.coverage * total)
    return ordered if policy.max_rows is None else ordered.head(policy.max_rows)


def _place(
    before: pl.DataFrame, admitted: pl.DataFrame, policy: VocabularySettings, day: date
) -> Vocabulary:
    """Keeps the rows of those who stay; newcomers take the lowest free rows, strongest first."""
    stay = admitted.filter(pl.col("row").is_not_null())
    come = admitted.filter(pl.col("row").is_null()).sort(["units", "id"], descending=[True, False])
    first = policy.tail_buckets + 1
    top = int(before["row"].to_numpy().max()) + 1 if before.height else first
    taken = np.zeros(top, dtype=bool)
    taken[stay["row"].to_numpy()] = True
    free = np.flatnonzero(~taken[first:]) + first
    reused = free[: come.height]
    fresh = np.arange(top, top + come.height - reused.size)
    rows = np.concatenate([reused, fresh])
    if rows.size and rows[-1] > np.iinfo(np.int32).max:
        raise DataError("more rows than an embedding table can have", fix="set max_rows")
    come = come.with_columns(pl.Series("row", rows, dtype=pl.Int32), pl.lit(day).alias("since"))
    table = pl.concat([stay, come]).select(
        "id", "row", (pl.col("units") / UNIT).alias("count"), "last_seen", "since"
    )
    if not (np.diff(table["row"].to_numpy()) > 0).all():
        table = table.sort("row")
    changes = Changes(
        kept=stay.height,
        promoted=come.height,
        demoted=before.height - stay.height,
        new_rows=int(fresh.size),
        reused_rows=int(reused.size),
    )
    return Vocabulary(policy, table, changes)
