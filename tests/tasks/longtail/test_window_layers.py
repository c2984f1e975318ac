"""A window in two layers: whatever days enter and leave, the sums of a dictionary."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.longtail.id_hash import integers_at, partition_of, place_integers
from tasks.longtail.window_layers import (
    SLICES,
    Layer,
    covered,
    empty_layer,
    from_arrow,
    from_frame,
    layers_of,
)

IDS = [(n * 0x5851F42D4C957F2D + 1) % 2**64 for n in range(14)]
DAY = st.dictionaries(st.sampled_from(IDS), st.integers(1, 3), max_size=9)
WINDOW_DAYS = 3


def layer(rows):
    """A layer of {ID: (units, day)}."""
    ids = np.array(list(rows), dtype=np.uint64)
    order = np.argsort(place_integers(ids))
    units = np.array([units for units, _ in rows.values()], dtype=np.int64)
    seen = np.array([day for _, day in rows.values()], dtype=np.int32)
    return Layer(place_integers(ids)[order], units[order], seen[order])


def rows_of(found):
    ids = integers_at(found.places).tolist()
    assert found.places.tolist() == sorted(found.places.tolist())
    return dict(zip(ids, zip(found.units.tolist(), found.seen.tolist(), strict=True), strict=True))


def summed(days, last):
    """The window of the days up to one."""
    rows: dict[int, tuple[int, int]] = {}
    for day in range(max(0, last - WINDOW_DAYS + 1), last + 1):
        for key, count in days[day].items():
            rows[key] = (rows.get(key, (0, 0))[0] + count, day)
    return rows


@pytest.mark.parametrize("parts", [1, 2])
@settings(max_examples=200, deadline=None)
@given(days=st.lists(DAY, min_size=2, max_size=2 * SLICES + 2))
def test_days_that_enter_and_leave_one_by_one_are_the_window_summed_anew(parts, days):
    everything = [layers_of(part_of(summed(days, 0), n, parts), n, parts) for n in range(parts)]
    for today in range(1, len(days)):
        changes = {key: (count, today) for key, count in days[today].items()}
        left = today - WINDOW_DAYS
        for key, count in days[left].items() if left >= 0 else ():
            units, seen = changes.get(key, (0, left))
            changes[key] = (units - count, seen)
        was, now = summed(days, today - 1), summed(days, today)
        for n in range(parts):
            change = part_of(changes, n, parts)
            added, changed, old = everything[n].changed(change)
            ids = integers_at(change.places).tolist()
            assert changed.places.tolist() == change.places.tolist()
            for key, units, seen in zip(ids, changed.units, changed.seen, strict=True):
                assert (units, seen if units else 0) == now.get(key, (0, 0))
            assert old.tolist() == [was.get(key, (0, 0))[0] for key in ids]
            folded = added.folded(today % SLICES)
            for least in (1, 3):
                expected = {key: row for key, row in now.items() if row[0] >= least}
                mine = rows_of(part_of(expected, n, parts))
                assert rows_of(added.at_least(least)) == mine
                assert rows_of(folded.at_least(least)) == mine
            everything[n] = folded


def part_of(rows, part, parts):
    ids = pl.Series(list(rows), dtype=pl.UInt64)
    of = partition_of(ids, parts).to_list()
    kept = zip(rows.items(), of, strict=True)
    return layer({key: row for (key, row), number in kept if number == part})


def test_after_a_round_of_days_nothing_is_left_in_the_small_layer():
    layers = layers_of(layer(dict.fromkeys(IDS, (2, 1))), 0, 1)
    layers, _, _ = layers.changed(layer(dict.fromkeys(IDS[:7], (-2, 1))))
    assert layers.top.places.size == 7
    for number in range(SLICES):
        layers = layers.folded(number)
    assert layers.top.places.size == 0
    # Those that have left are gone from the large layer too.
    assert sum(stretch.places.size for stretch in layers.stretches) == 7


def test_what_lies_above_counts():
    below, above = layer({5: (1, 1), 6: (1, 1)}), layer({6: (0, 2), 7: (9, 3)})
    assert rows_of(covered(below, above)) == {5: (1, 1), 6: (0, 2), 7: (9, 3)}
    assert rows_of(covered(below, empty_layer())) == rows_of(below)
    assert rows_of(covered(empty_layer(), above)) == rows_of(above)


@pytest.mark.parametrize("dtype", [pl.Int64(), pl.UInt64()])
def test_a_layer_is_a_window_and_a_table(dtype):
    ids = [-1, 3] if dtype == pl.Int64() else [2**64 - 1, 3]
    rows = layer({key % 2**64: (4, 20_454) for key in ids})
    frame = rows.to_frame(dtype)
    assert sorted(frame["id"].to_list()) == sorted(ids)
    assert frame.schema["id"] == dtype
    assert rows_of(from_frame(frame)) == rows_of(rows) == rows_of(from_arrow(rows.to_arrow()))
    assert from_arrow(empty_layer().to_arrow()).places.size == 0
