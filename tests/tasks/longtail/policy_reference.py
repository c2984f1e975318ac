"""The admission policy once more, in plain Python over dictionaries, one ID at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from tasks.config import VocabularySettings

UNIT = 2**20


@dataclass
class Owner:
    row: int
    units: int
    last_seen: date


def window_units(
    days: Mapping[date, Mapping[Any, int]], today: date, window_days: int, decay: float
) -> tuple[dict[Any, int], dict[Any, date]]:
    """Decayed counts of the window before `today`, and the newest day of each ID."""
    units: dict[Any, int] = {}
    seen: dict[Any, date] = {}
    for day, counts in days.items():
        age = (today - day).days
        if not 1 <= age <= window_days:
            continue
        for key, count in counts.items():
            units[key] = units.get(key, 0) + count * round(decay ** (age - 1) * UNIT)
            seen[key] = max(seen.get(key, day), day)
    return units, seen


def next_owners(
    before: Mapping[Any, Owner],
    units: Mapping[Any, int],
    seen: Mapping[Any, date],
    policy: VocabularySettings,
    today: date,
) -> dict[Any, Owner]:
    """Owners of `today`."""
    ratio = policy.min_count / policy.kept_from if policy.kept_from > 0 else float("inf")
    candidates = []
    for key in set(before) | set(units):
        count = units.get(key, 0)
        days = [d for d in (seen.get(key), before[key].last_seen if key in before else None) if d]
        newest = max(days)
        if policy.ttl_days is not None and (today - newest).days - 1 >= policy.ttl_days:
            continue
        if policy.coverage is None:
            needed = policy.kept_from if key in before else policy.min_count
            if count < needed * UNIT:
                continue
        elif key not in before and count < 1:
            continue
        if key not in before:
            strength = float(count)
        else:
            strength = float("inf") if ratio == float("inf") else count * ratio
        candidates.append((-strength, -count, key, count, newest))
    candidates.sort()
    if policy.coverage is not None:
        total, covered, chosen = sum(units.values()), 0, []
        for candidate in candidates:
            if covered < policy.coverage * total:
                chosen.append(candidate)
            covered += candidate[3]
        candidates = chosen
    if policy.max_rows is not None:
        candidates = candidates[: policy.max_rows]
    owners = {
        key: Owner(before[key].row, count, newest)
        for _, _, key, count, newest in candidates
        if key in before
    }
    taken = {owner.row for owner in owners.values()}
    row = policy.tail_buckets + 1
    newcomers = [c for c in candidates if c[2] not in before]
    for _, _, key, count, newest in sorted(newcomers, key=lambda c: (c[1], c[2])):
        while row in taken:
            row += 1
        taken.add(row)
        owners[key] = Owner(row, count, newest)
    return owners
