"""Protects the columns of the losses: one for each item with all its draws, and every item that a
user is known to like found, and no other."""

from __future__ import annotations

import torch

from models.candidates import Positives, known_columns, merge_draws
from models.distinct import Distinct
from models.jagged import Jagged

CPU = torch.device("cpu")


def test_draws_of_an_item_become_one_column_of_their_summed_weight() -> None:
    item = torch.tensor([4, 2, 4, 0, 2, 4])
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).double()
    candidates, column = merge_draws(Distinct(5, CPU), item, weight.log())
    found = dict(zip(candidates.item.tolist(), candidates.log_weight.exp().tolist(), strict=True))
    assert {k: round(v, 9) for k, v in found.items()} == {4: 10.0, 2: 7.0, 0: 4.0}
    assert candidates.item[column].tolist() == item.tolist()
    draws = dict(zip(candidates.item.tolist(), candidates.draws.tolist(), strict=True))
    assert draws == {4: 3, 2: 2, 0: 1}
    assert candidates.total == 6


def test_distinct_forgets_the_last_call() -> None:
    distinct = Distinct(10, CPU)
    generator = torch.Generator().manual_seed(1)
    for size in (6, 3, 50, 1, 0, 4):
        values = torch.randint(10, (size,), generator=generator)
        different, positions = distinct(values)
        assert sorted(different.tolist()) == sorted(set(values.tolist()))
        assert different[positions].tolist() == values.tolist()
        assert distinct.count == len(different)
        found = distinct.find(torch.arange(10)).tolist()
        expected = {int(v): n for n, v in enumerate(different)}
        assert found == [expected.get(value, -1) for value in range(10)]
        last = {int(v): n for n, v in enumerate(values)}
        places = distinct.last_place(different).tolist()
        assert places == [last[int(v)] for v in different]


def test_known_items_are_those_of_history_and_of_the_users_other_examples() -> None:
    # Examples 0 and 3 are of user 7, who thus knows items 1 and 5.
    user, item = torch.tensor([7, 8, 9, 7]), torch.tensor([1, 2, 3, 5])
    distinct = Distinct(10, CPU)
    candidates, column = merge_draws(
        distinct, torch.cat([item, torch.tensor([6, 6, 2])]), torch.zeros(7)
    )
    histories = [[6, 6, 9], [2, 3], [], [1, 4]]
    for own in ([0, 1, 2, 3], [1, 2], [3]):
        history = Jagged.from_lists([histories[i] for i in own])
        found = known_columns(distinct, history, user, item, torch.tensor(own))
        from_history = [[6, 6], [3], [], [1]]
        from_examples = [[5], [], [], [1]]
        for known, expected in zip(found, (from_history, from_examples), strict=True):
            for row, example in enumerate(own):
                columns = known.slice(row, row + 1).values
                items = sorted(candidates.item[columns].tolist())
                assert items == [i for i in expected[example] if i != item[example]]
    everything = known_columns(distinct, Jagged.from_lists(histories), user, item, torch.arange(4))
    repeats, liked = Positives(column[:4], torch.zeros(4), everything).left_out(candidates)
    # Item 2 was drawn twice and is the own item of one user. Item 6 was drawn twice and stands
    # twice in a history; items 5, 3 and 1 were drawn once, and 1 is known from two places.
    assert (int(repeats), int(liked)) == (1, 2 * 2 + 1 + 1 + 2)


def test_nothing_is_known_of_an_empty_batch() -> None:
    distinct = Distinct(4, CPU)
    distinct(torch.tensor([1, 2]))
    none = torch.zeros(0, dtype=torch.int64)
    for known in known_columns(
        distinct, Jagged.from_lists([]), torch.tensor([3, 4]), torch.tensor([1, 2]), none
    ):
        assert (len(known), known.values.numel()) == (0, 0)
