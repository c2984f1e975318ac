"""Conditions on values, run by Great Expectations on frames with pyarrow-backed types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.contract import Contract
from data_contracts.event_times import micros, moment
from data_contracts.rules import Rule
from data_contracts.tally import SAMPLES, Tallies, tally_of

if TYPE_CHECKING:
    import pandas as pd

    from data_contracts.expectations import FrameValidation

_BETWEEN = "ExpectColumnValuesToBeBetween"
_LENGTHS = "ExpectColumnValueLengthsToBeBetween"


@dataclass(frozen=True)
class Frame:
    """A batch of a file whose values are still to be checked, and where the result goes."""

    rules: tuple[Rule, ...]
    batch: pa.RecordBatch
    file: str
    tallies: Tallies


def check_values(contract: Contract, frames: Sequence[Frame]) -> None:
    """Runs the conditions on values and adds what they find to the frames' tallies.

    Args:
        contract: The contract.
        frames: Batches of any files.
    """
    alike: dict[object, list[Frame]] = {}
    for frame in frames:
        rules = tuple(rule.key for rule in frame.rules)
        alike.setdefault((rules, str(frame.batch.schema)), []).append(frame)
    for group in alike.values():
        if _all_good(contract, group):
            for frame in group:
                for rules_of_suite, values in _suites(frame):
                    for rule in rules_of_suite:
                        good = tally_of(frame.file, 0, values.num_rows)
                        frame.tallies[rule.key].merge(good)
        else:
            for frame in group:
                _check_frame(contract, frame)


def _all_good(contract: Contract, frames: Sequence[Frame]) -> bool:
    """Whether no value of frames with equal rules and schema breaks anything.

    Great Expectations looks at values one by one in Python, and has a price for every frame. A few
    values tell whether there is a bad one at all: only then all of them are looked at.
    """
    suites: dict[tuple[str, ...], tuple[tuple[Rule, ...], list[pa.Table]]] = {}
    for frame in frames:
        for rules, values in _suites(frame):
            keys = tuple(rule.key for rule in rules)
            suites.setdefault(keys, (rules, []))[1].append(_witnesses(rules, values))
    return all(
        outcome.unexpected == 0
        for rules, tables in suites.values()
        for outcome in _validation(contract, rules).run(_frame(pa.concat_tables(tables))).values()
    )


def _witnesses(rules: Sequence[Rule], values: pa.Table) -> pa.Table:
    """Values that break a rule if any value does; shorter columns are filled up with nulls."""
    columns = {}
    for name in values.column_names:
        kinds = {r.check.expectation for r in rules if r.check and _frame_column(r) == name}
        columns[name] = _deciding(values.column(name).combine_chunks(), kinds)
    rows = max(map(len, columns.values()))
    return pa.table(
        {
            name: pa.concat_arrays([column, pa.nulls(rows - len(column), column.type)])
            for name, column in columns.items()
        }
    )


def _deciding(column: pa.Array, kinds: set[str]) -> pa.Array:
    """For conditions that are intervals the values at their ends, else each value once."""
    if not kinds <= {_BETWEEN, _LENGTHS}:
        return pc.unique(column)
    places = _ends(column) if _BETWEEN in kinds else set()
    if _LENGTHS in kinds:
        places |= _ends(pc.utf8_length(column))
    return column.take(pa.array(sorted(places), pa.int64()))


def _ends(numbers: pa.Array) -> set[int]:
    """Places of a smallest and a largest number, and of a NaN, which is neither."""
    found = pc.min_max(numbers)
    places = {pc.index(numbers, end).as_py() for end in found.values() if end.is_valid}
    if pa.types.is_floating(numbers.type):
        places.add(pc.index(pc.is_nan(numbers), True).as_py())
    return {place for place in places if place >= 0}


def _check_frame(contract: Contract, frame: Frame) -> None:
    for rules, values in _suites(frame):
        outcomes = _validation(contract, rules).run(_frame(values))
        for rule in rules:
            outcome = outcomes[rule.key]
            sample: Sequence[object] = outcome.sample
            if _is_moment(rule, frame.batch):
                sample = [moment(int(str(value))) for value in sample]
            personal = contract.is_personal(rule.column)
            tally = tally_of(frame.file, outcome.unexpected, values.num_rows, sample, personal)
            frame.tallies[rule.key].merge(tally)


def _suites(frame: Frame) -> Iterator[tuple[tuple[Rule, ...], pa.Table]]:
    """The tables that are checked: one of the rows, one of the elements of each list column."""
    groups: dict[str, list[Rule]] = {}
    for rule in frame.rules:
        is_element = rule.check is not None and rule.check.view == "elements"
        groups.setdefault(rule.column[0] if is_element else "", []).append(rule)
    for rules in groups.values():
        columns = {_frame_column(r): _view(r, frame.batch.column(r.column[0])) for r in rules}
        table = pa.table(columns)
        if table.num_rows:
            yield tuple(rules), table


def _is_moment(rule: Rule, batch: pa.RecordBatch) -> bool:
    is_value = rule.check is not None and rule.check.view == "values"
    return is_value and pa.types.is_timestamp(batch.column(rule.column[0]).type)


def _frame_column(rule: Rule) -> str:
    """Name of what a rule looks at in the frame; rules about the same thing share it."""
    assert rule.check is not None
    suffix = {"values": "", "lengths": " (length)", "elements": " (element)"}[rule.check.view]
    return rule.column[0] + suffix


def _view(rule: Rule, column: pa.Array) -> pa.Array:
    assert rule.check is not None
    if rule.check.view == "lengths":
        return pc.list_value_length(column)
    if rule.check.view == "elements":
        column = pc.list_flatten(column)
    # pandas turns timestamps into Python objects one by one to compare them: 30 us a value.
    return micros(column) if pa.types.is_timestamp(column.type) else column


def _frame(table: pa.Table) -> pd.DataFrame:
    import pandas as pd

    return table.to_pandas(types_mapper=pd.ArrowDtype)


def _validation(contract: Contract, rules: tuple[Rule, ...]) -> FrameValidation:
    """The validation of some rules of a contract, built once in a process."""
    from data_contracts.expectations import Expectation, FrameValidation

    name = (contract.digest, tuple(rule.key for rule in rules))
    if name not in _validations:
        _validations[name] = FrameValidation(
            [
                Expectation(
                    rule.key, rule.check.expectation, _frame_column(rule), rule.check.arguments
                )
                for rule in rules
                if rule.check is not None
            ],
            sample=SAMPLES,
        )
    return _validations[name]


_validations: dict[tuple[str, tuple[str, ...]], FrameValidation] = {}
