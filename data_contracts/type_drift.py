"""Columns whose type changed from one day to another."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from data_contracts.broken_rules import BrokenRule
from data_contracts.contract import Contract
from data_contracts.result import RuleResult


def types_between_days(
    contract: Contract, types: Mapping[date, Mapping[str, str]]
) -> list[BrokenRule]:
    """Declared columns whose type is not the same on all days, which no join survives.

    Args:
        contract: The contract.
        types: Type of every column, by day.
    """
    results = []
    days = sorted(types)
    for column in contract.columns:
        having = [day for day in days if column.name in types[day]]
        for day in having[1:]:
            first, found = types[having[0]][column.name], types[day][column.name]
            if found != first:
                rule = RuleResult(
                    rule="type differs between days",
                    column=column.name,
                    found=found,
                    expected=f"{first}, as on {having[0]}",
                )
                results.append(BrokenRule(contract.dataset, (day,), rule))
    return results
