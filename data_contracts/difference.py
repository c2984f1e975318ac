"""What differs between two versions of a contract, and what of it breaks somebody.

A change breaks when data that the old contract let through stops a run under the new one, or when
a reader who relied on the old contract meets something that it ruled out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from data_contracts.contract import Contract
from data_contracts.rules import Bound, Column, Rule

Breaks = Literal["deliveries", "readers", "both", "nobody"]


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        what: The column or rule, and what happened to it.
        old: What the old contract said; empty when it said nothing.
        new: What the new one says.
        breaks: Who is hurt: `deliveries` that were good may now stop a run; `readers` may now meet
            what was ruled out.
    """

    what: str
    old: str
    new: str
    breaks: Breaks


def differences(old: Contract, new: Contract) -> list[Change]:
    """All differences, those that break first."""
    changes = [*_columns(old, new), *_additional(old, new), *_rules(old, new)]
    return sorted(changes, key=lambda change: change.breaks == "nobody")


def _columns(old: Contract, new: Contract) -> Iterator[Change]:
    names = dict.fromkeys(column.name for column in (*old.columns, *new.columns))
    for name in names:
        before, after = old.column(name), new.column(name)
        if before is None and after is not None:
            breaks: Breaks = "nobody" if after.may_be_absent else "deliveries"
            yield Change(f"column {name} added", "", _type(after), breaks)
        elif after is None and before is not None:
            yield Change(f"column {name} removed", _type(before), "", "readers")
        elif before is not None and after is not None:
            yield from _column(before, after)


def _column(before: Column, after: Column) -> Iterator[Change]:
    name = before.name
    if set(before.types) != set(after.types):
        fewer, more = set(before.types) - set(after.types), set(after.types) - set(before.types)
        yield Change(
            f"type of {name}", _type(before), _type(after), _sides(bool(fewer), bool(more))
        )
    if before.may_be_absent != after.may_be_absent:
        words = {True: "may be absent", False: "always there"}
        yield Change(
            f"presence of {name}",
            words[before.may_be_absent],
            words[after.may_be_absent],
            "readers" if after.may_be_absent else "deliveries",
        )
    if before.personal != after.personal:
        words = {True: "personal", False: "not personal"}
        yield Change(
            f"classification of {name}", words[before.personal], words[after.personal], "nobody"
        )


def _type(column: Column) -> str:
    return " | ".join(column.types)


def _additional(old: Contract, new: Contract) -> Iterator[Change]:
    before, after = old.additional_columns or "allow", new.additional_columns or "allow"
    if before != after:
        breaks: Breaks = "deliveries" if after == "block" else "nobody"
        yield Change("additional columns", before, after, breaks)


def _rules(old: Contract, new: Contract) -> Iterator[Change]:
    before, after = _by_identity(old), _by_identity(new)
    kept = {column.name for column in old.columns} & {column.name for column in new.columns}
    for identity in dict.fromkeys((*before, *after)):
        first, second = before.get(identity), after.get(identity)
        rule = second or first
        assert rule is not None
        what = f"rule {rule.name}" + (f" of {', '.join(rule.column)}" if rule.column else "")
        if first is None and second is not None:
            is_strict = second.severity == "block" and set(second.column) <= kept
            yield Change(
                f"{what} added", "", _says(second), "deliveries" if is_strict else "nobody"
            )
        elif second is None and first is not None:
            is_loose = first.severity == "block" and set(first.column) <= kept
            yield Change(f"{what} removed", _says(first), "", "readers" if is_loose else "nobody")
        elif first is not None and second is not None and _content(first) != _content(second):
            yield Change(what, _says(first), _says(second), _moved(first, second))


def _by_identity(contract: Contract) -> dict[tuple[object, ...], Rule]:
    """Rules by what they are about; several about the same thing are told apart by their order."""
    found: dict[tuple[object, ...], Rule] = {}
    for rule in contract.rules:
        view = rule.check.view if rule.check else ""
        form = rule.settings.get("form", "")
        identity = (rule.measure, rule.name, rule.column, view, form, rule.bound.unit)
        occurrence = sum(known[: len(identity)] == identity for known in found)
        found[(*identity, occurrence)] = rule
    return found


def _content(rule: Rule) -> tuple[object, ...]:
    check = (rule.check.expectation, rule.check.arguments) if rule.check else None
    return rule.severity, rule.bound, check, rule.settings


def _says(rule: Rule) -> str:
    return f"{rule.expected} ({rule.severity})"


def _moved(first: Rule, second: Rule) -> Breaks:
    """Who a changed rule hurts; warnings hurt nobody."""
    if first.severity == second.severity == "warn":
        return "nobody"
    if first.severity == "warn":
        return "deliveries"
    if second.severity == "warn":
        return "readers"
    stricter = looser = False
    if first.bound != second.bound:
        stricter, looser = _compare(_interval(first.bound), _interval(second.bound))
    if _content(first)[2:] != _content(second)[2:]:
        more = _compare_checks(first, second)
        stricter, looser = stricter or more[0], looser or more[1]
    return _sides(stricter, looser)


def _sides(stricter: bool, looser: bool) -> Breaks:
    if stricter and looser:
        return "both"
    return "deliveries" if stricter else "readers" if looser else "nobody"


_Interval = tuple[float, bool, float, bool]
_END = float("inf")


def _interval(bound: Bound) -> _Interval | None:
    """Low end, whether it is left out, high end, whether it is left out; None for a gap."""
    values = bound.values
    return {
        "mustBe": (values[0], False, values[0], False),
        "mustBeGreaterThan": (values[0], True, _END, False),
        "mustBeGreaterOrEqualTo": (values[0], False, _END, False),
        "mustBeLessThan": (-_END, False, values[0], True),
        "mustBeLessOrEqualTo": (-_END, False, values[0], False),
        "mustBeBetween": (values[0], False, values[-1], False),
    }.get(bound.operator)


def _compare(old: _Interval | None, new: _Interval | None) -> tuple[bool, bool]:
    """Whether the new interval leaves out numbers of the old one, and the other way round."""
    if old is None or new is None:
        return True, True
    old_low, new_low = (old[0], old[1]), (new[0], new[1])
    old_high, new_high = (old[2], not old[3]), (new[2], not new[3])
    return new_low > old_low or new_high < old_high, new_low < old_low or new_high > old_high


def _compare_checks(first: Rule, second: Rule) -> tuple[bool, bool]:
    """The same about conditions on values: ends of a range, or a set of values."""
    if first.check is None or second.check is None:
        return True, True
    old, new = first.check.arguments, second.check.arguments
    if "value_set" in old and "value_set" in new:
        before, after = set(old["value_set"]), set(new["value_set"])
        return bool(before - after), bool(after - before)
    if "regex" in old or "regex" in new or first.settings != second.settings:
        return True, True
    return _compare(_range(old), _range(new))


def _range(arguments: dict[str, float]) -> _Interval:
    return (
        arguments.get("min_value", -_END),
        bool(arguments.get("strict_min")),
        arguments.get("max_value", _END),
        bool(arguments.get("strict_max")),
    )
