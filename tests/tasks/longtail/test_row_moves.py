"""Protects what rows start from when a vocabulary changed: owners keep theirs, promoted IDs come
from their buckets, demoted ones go back into them, and no row inherits a former owner's vector."""

from __future__ import annotations

from datetime import date

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

from tasks.config import VocabularySettings
from tasks.longtail.id_hash import tail_buckets
from tasks.longtail.row_moves import row_moves
from tasks.longtail.vocabulary_table import Vocabulary

Terms = dict[int, dict[int, tuple[float, float]]]
DAY = date(2026, 1, 1)


def _vocabulary(owners: dict[str, tuple[int, float]], **policy: int) -> Vocabulary:
    """Owners by ID, with row and count."""
    table = pl.DataFrame(
        {
            "id": list(owners),
            "row": [row for row, _ in owners.values()],
            "count": [count for _, count in owners.values()],
            "last_seen": [DAY] * len(owners),
            "since": [DAY] * len(owners),
        },
        schema_overrides={"id": pl.String, "row": pl.Int32, "count": pl.Float64},
    )
    return Vocabulary(VocabularySettings.model_validate(policy), table.sort("row"))


def _terms(old: Vocabulary, new: Vocabulary, events: float) -> Terms:
    table, _ = row_moves(old, new, events)
    rows = table.column("new_row").to_pylist()
    assert rows == sorted(rows)
    terms: Terms = {}
    for line in table.to_pylist():
        place = terms.setdefault(line["new_row"], {})
        assert line["old_row"] not in place
        place[line["old_row"]] = (line["weight"], line["state"])
    return terms


def _buckets(identity: str, vocabulary: Vocabulary) -> list[int]:
    policy = vocabulary.policy
    found = tail_buckets(
        pl.Series([identity]), buckets=policy.tail_buckets, hashes=policy.hashes, seed=policy.seed
    )
    return [int(rows[0]) for rows in found]


def test_one_bucket_by_hand() -> None:
    """Row 1 is the bucket. b (6 events) leaves row 3 for it; d takes the row over."""
    old = _vocabulary({"a": (2, 10.0), "b": (3, 6.0), "c": (4, 4.0)})
    new = _vocabulary({"a": (2, 10.0), "d": (3, 5.0), "c": (4, 4.0), "e": (6, 9.0)})
    assert _terms(old, new, 14.0) == {
        # 14 events of the bucket and 6 of b.
        1: {1: (pytest.approx(0.7), pytest.approx(0.7)), 3: (pytest.approx(0.3),) * 2},
        2: {2: (1.0, 1.0)},
        3: {1: (1.0, 1.0)},
        4: {4: (1.0, 1.0)},
        6: {1: (1.0, 1.0)},
    }
    _, moved = row_moves(old, new, 14.0)
    assert moved.numbers() == {"kept": 2, "promoted": 2, "demoted": 1, "reset": 1}


def test_an_id_that_moves_takes_its_row_along() -> None:
    old = _vocabulary({"a": (2, 10.0), "b": (3, 6.0)})
    new = _vocabulary({"b": (2, 6.0), "a": (5, 10.0)})
    terms = _terms(old, new, 3.0)
    assert terms == {1: {1: (1.0, 1.0)}, 2: {3: (1.0, 1.0)}, 5: {2: (1.0, 1.0)}}


def _applied(terms: Terms, old: npt.NDArray[np.float64], column: int) -> dict[int, float]:
    return {
        row: sum(old[source] * factors[column] for source, factors in sources.items())
        for row, sources in terms.items()
    }


def test_two_hashes_by_the_rule() -> None:
    """Each bucket moves towards half of what a demoted ID's vector lacks, by its events."""
    policy = {"tail_buckets": 5, "hashes": 2}
    old = _vocabulary({"a": (6, 9.0), "b": (7, 3.0), "c": (8, 5.0)}, **policy)
    new = _vocabulary({"a": (6, 9.0), "d": (7, 5.0)}, **policy)
    weight = np.random.default_rng(0).normal(size=9)
    state = np.random.default_rng(1).random(9)
    events = 4.0
    terms = _terms(old, new, events)
    found, found_state = _applied(terms, weight, 0), _applied(terms, state, 1)

    first, second = _buckets("d", old)
    assert found[7] == pytest.approx(weight[first] + weight[second])
    assert found_state[7] == pytest.approx((state[first] + state[second]) / 2)
    joined = {bucket: [(weight[bucket], state[bucket], events)] for bucket in range(1, 6)}
    for identity, row, count in (("b", 7, 3.0), ("c", 8, 5.0)):
        pair = _buckets(identity, new)
        lacking = weight[row] - weight[pair[0]] - weight[pair[1]]
        for bucket in pair:
            joined[bucket].append((weight[bucket] + lacking / 2, state[row], count))
    for bucket, votes in joined.items():
        by = [vote[2] for vote in votes]
        assert found[bucket] == pytest.approx(np.average([v[0] for v in votes], weights=by))
        assert found_state[bucket] == pytest.approx(np.average([v[1] for v in votes], weights=by))


def test_an_empty_bucket_becomes_the_id_that_joins_it() -> None:
    old = _vocabulary({"a": (2, 9.0), "b": (3, 3.0)})
    new = _vocabulary({"a": (2, 9.0)})
    assert _terms(old, new, 0.0)[1] == {1: (0.0, 0.0), 3: (1.0, 1.0)}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (4, 2, {1: [1, 3], 2: [2, 4]}),
        (2, 4, {1: [1], 2: [2], 3: [1], 4: [2]}),
        (4, 6, {1: [1, 3], 2: [2, 4], 3: [1, 3], 4: [2, 4], 5: [1, 3], 6: [2, 4]}),
    ],
)
def test_another_number_of_buckets(before: int, after: int, expected: dict[int, list[int]]) -> None:
    old = _vocabulary({"a": (before + 1, 9.0)}, tail_buckets=before)
    new = _vocabulary({"a": (after + 1, 9.0), "b": (after + 2, 9.0)}, tail_buckets=after)
    terms = _terms(old, new, 5.0)
    assert terms[after + 1] == {before + 1: (1.0, 1.0)}
    assert terms[after + 2] == {_buckets("b", old)[0]: (1.0, 1.0)}
    for bucket, sources in expected.items():
        assert set(terms[bucket]) == set(sources)
        for factors in terms[bucket].values():
            assert factors == pytest.approx((1 / len(sources),) * 2)
    for identity in map(str, range(200)):
        assert _buckets(identity, old)[0] in expected[_buckets(identity, new)[0]]


def test_own_rows_come_from_their_owner_or_from_buckets() -> None:
    """Over random changes."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        names = [f"i{n}" for n in rng.permutation(60)]
        rows = rng.permutation(np.arange(4, 54))
        old = _vocabulary(
            {
                n: (int(r), float(rng.integers(0, 9)))
                for n, r in zip(names, rows[:30], strict=False)
            },
            tail_buckets=3,
        )
        left = [n for n in names[:30] if rng.random() < 0.6]
        stay = {n: r for n, r in zip(names, rows[:30], strict=False) if n in left}
        free = [r for r in range(4, 54) if r not in stay.values()]
        come = names[30:45]
        now = stay | dict(zip(come, free, strict=False))
        new = _vocabulary({n: (int(r), 5.0) for n, r in now.items()}, tail_buckets=3)
        terms = _terms(old, new, 7.0)
        for name, row in now.items():
            if name in stay:
                assert terms[int(row)] == {int(row): (1.0, 1.0)}
            else:
                assert set(terms[int(row)]) == {_buckets(name, old)[0]}
        assert set(terms) == {1, 2, 3, *(int(r) for r in now.values())}
        for bucket in (1, 2, 3):
            assert sum(w for w, _ in terms[bucket].values()) == pytest.approx(1.0)
            assert sum(s for _, s in terms[bucket].values()) == pytest.approx(1.0)


def test_vocabularies_without_owners() -> None:
    nobody, somebody = _vocabulary({}), _vocabulary({"a": (2, 9.0)})
    assert _terms(nobody, somebody, 1.0) == {1: {1: (1.0, 1.0)}, 2: {1: (1.0, 1.0)}}
    assert set(_terms(somebody, nobody, 1.0)) == {1}
    assert _terms(nobody, nobody, 1.0) == {1: {1: (1.0, 1.0)}}
