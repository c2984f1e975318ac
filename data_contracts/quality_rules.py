"""Rules from `quality` entries: the standard's library metrics and the product's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_contracts.contract_file import ContractFile
from data_contracts.rules import NONE, OPERATORS, Bound, Column, Rule, Severity, ValueCheck
from data_contracts.value_rules import Place, pattern_check

ENGINE = "tailtower"
_SEVERITIES: dict[str, Severity] = {
    "block": "block",
    "error": "block",
    "warn": "warn",
    "warning": "warn",
    "info": "warn",
}
_DESCRIBING = frozenset(
    [
        "id",
        "name",
        "description",
        "dimension",
        "businessImpact",
        "tags",
        "authoritativeDefinitions",
        "type",
    ]
)
_LIBRARY_KEYS = _DESCRIBING | {"metric", "arguments", "unit", "severity"} | set(OPERATORS)
_CUSTOM_KEYS = _DESCRIBING | {"engine", "implementation", "severity"}
_ARGUMENTS = {
    "nullValues": (),
    "missingValues": ("missingValues",),
    "invalidValues": ("validValues", "pattern"),
    "duplicateValues": ("properties",),
    "rowCount": (),
}
#: Parameters of the product's own rules.
_OWN = {
    "eventTimesInsideDay": ("clockSkewSeconds",),
    "finite": (),
    "textForm": ("unicode", "whitespace", "invisible", "case"),
    "rowsAgainstTrailingDays": ("days", "minimumDays", "minimumRows", *OPERATORS),
    "smallestValue": tuple(OPERATORS),
    "largestValue": tuple(OPERATORS),
    "distinctValues": tuple(OPERATORS),
    "unseenShare": ("days", "minimumDays", *OPERATORS),
    "tailShare": ("days", "minimumCount", *OPERATORS),
    "populationStability": ("days", "minimumDays", *OPERATORS),
}
#: Rules about one number of a column: their measure, what a person reads, the number's unit, and
#: the settings that they have when the contract gives none.
_NUMBERS: dict[str, tuple[Any, str, Any, dict[str, int]]] = {
    "smallestValue": ("smallest", "smallest value", "", {}),
    "largestValue": ("largest", "largest value", "", {}),
    "distinctValues": ("distinct", "distinct values", "", {}),
    "unseenShare": ("unseen", "unseen values", "percent", {"days": 7, "minimumDays": 3}),
    "tailShare": ("tail", "share of the tail", "percent", {"days": 6, "minimumCount": 10}),
    "populationStability": ("stability", "drift", "PSI", {"days": 7, "minimumDays": 3}),
}
#: Choices of `textForm`; the form that each one wants, None for any.
_FORMS: dict[str, dict[str, str | None]] = {
    "unicode": {"NFC": "NFC", "NFD": "NFD", "NFKC": "NFKC", "NFKD": "NFKD", "any": None},
    "whitespace": {"trimmed": "trimmed", "none": "without blanks", "any": None},
    "invisible": {"refused": "visible", "any": None},
    "case": {"lower": "lower", "upper": "upper", "any": None},
}
_NO_COLUMN = "write it below a column"


def quality_rules(
    file: ContractFile,
    entry: dict[str, Any],
    place: Place,
    *,
    column: Column | None,
    columns: Sequence[Column],
) -> list[Rule]:
    """Rules of a column's or, without a column, of the schema's `quality` list.

    Raises:
        ContractFileError: An entry is not checked by this version.
    """
    rules = []
    for n, quality in enumerate(entry.get("quality", [])):
        at = (*place, "quality", n)
        kind = quality.get("type", "library")
        if kind == "text":
            continue  # The standard's way to write a remark.
        if kind == "library":
            rules.append(_Library(file, quality, at, column, columns).rule())
        elif kind == "custom":
            rules += _own_rules(file, quality, at, column)
        else:
            raise file.error(
                f"quality rules of type {kind} are not run", (*at, "type"), "use library or custom"
            )
    return rules


def _refuse_unknown(
    file: ContractFile, mapping: dict[str, Any], known: Sequence[str], place: Place
) -> None:
    for key in mapping:
        if key not in known:
            raise file.unknown(key, sorted(known), (*place, key))


def _severity(file: ContractFile, quality: dict[str, Any], place: Place) -> Severity:
    given = str(quality.get("severity", "block")).lower()
    if given not in _SEVERITIES:
        raise file.unknown(given, list(_SEVERITIES), (*place, "severity"), "severity")
    return _SEVERITIES[given]


def _bound(file: ContractFile, mapping: dict[str, Any], place: Place, unit: Any) -> Bound:
    given = [name for name in OPERATORS if name in mapping]
    if not given:
        raise file.error("the rule has no bound", place, f"give one of {', '.join(OPERATORS)}")
    if len(given) > 1:
        raise file.error("the rule has two bounds", (*place, given[1]), "write two rules")
    name = given[0]
    value = mapping[name]
    values = value if isinstance(value, list) else [value]
    wanted = 2 if name.endswith("Between") else 1
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(values) != wanted or len(numbers) != wanted or sorted(numbers) != numbers:
        shape = "two numbers, the smaller first" if wanted == 2 else "a number"
        raise file.error(f"{name}: {value!r}", (*place, name), f"give {shape}")
    return Bound(name, tuple(numbers), unit)


class _Library:
    """One of the standard's library metrics."""

    def __init__(
        self,
        file: ContractFile,
        quality: dict[str, Any],
        place: Place,
        column: Column | None,
        columns: Sequence[Column],
    ) -> None:
        self.file = file
        self.quality = quality
        self.place = place
        self.column = column
        self.columns = columns

    def rule(self) -> Rule:
        file, quality, place = self.file, self.quality, self.place
        _refuse_unknown(file, quality, sorted(_LIBRARY_KEYS), place)
        metric = quality.get("metric")
        if metric is None:
            raise file.error("the rule names no metric", place, f"one of {', '.join(_ARGUMENTS)}")
        arguments = quality.get("arguments", {})
        _refuse_unknown(file, arguments, _ARGUMENTS[metric], (*place, "arguments"))
        unit = quality.get("unit", "rows")
        if unit not in ("rows", "percent"):
            raise file.unknown(unit, ["rows", "percent"], (*place, "unit"), "unit")
        if self.column is None and metric not in ("rowCount", "duplicateValues"):
            raise file.error(f"{metric} is about one column", (*place, "metric"), _NO_COLUMN)
        bound = _bound(file, quality, place, unit)
        severity = _severity(file, quality, place)
        names: tuple[str, ...] = (self.column.name,) if self.column else ()
        if metric == "rowCount":
            return Rule("", "row count", "rows", (), str(bound), bound, severity)
        if metric == "nullValues":
            expected = f"{bound} nulls"
            return Rule("", "nulls", "nulls", names, expected, bound, severity)
        if metric == "missingValues":
            missing = [value for value in arguments.get("missingValues", ()) if value is not None]
            settings = {"missing": [str(value) for value in missing]}
            expected = f"{bound} missing"
            return Rule(
                "", "missing", "missing", names, expected, bound, severity, settings=settings
            )
        if metric == "duplicateValues":
            names = self._key(arguments)
            expected = f"{bound} duplicates"
            return Rule("", "duplicates", "duplicates", names, expected, bound, severity)
        return self._invalid_values(arguments, names, bound, severity)

    def _key(self, arguments: dict[str, Any]) -> tuple[str, ...]:
        names = arguments.get("properties") or ([self.column.name] if self.column else [])
        place = (*self.place, "arguments")
        if not names:
            raise self.file.error("the key has no columns", place, "list them under properties")
        known = [column.name for column in self.columns]
        for name in names:
            if self.column is None and name not in known:
                raise self.file.unknown(name, known, (*place, "properties"), "column")
        return tuple(names)

    def _invalid_values(
        self, arguments: dict[str, Any], names: tuple[str, ...], bound: Bound, severity: Severity
    ) -> Rule:
        place = (*self.place, "arguments")
        if len(arguments) != 1:
            raise self.file.error(
                "invalidValues needs one of validValues, pattern", place, "give one of them"
            )
        if "validValues" in arguments:
            values = arguments["validValues"]
            check = ValueCheck("ExpectColumnValuesToBeInSet", {"value_set": values})
            what = "one of " + ", ".join(str(value) for value in values)
        else:
            check = pattern_check(self.file, arguments["pattern"], (*place, "pattern"), "values")
            what = f"matches {arguments['pattern']}"
        expected = what if bound == NONE else f"{bound} that are not: {what}"
        return Rule("", "valid values", "values", names, expected, bound, severity, check=check)


def _own_rules(
    file: ContractFile, quality: dict[str, Any], place: Place, column: Column | None
) -> list[Rule]:
    """The product's own rules: `type: custom`, `engine: tailtower`."""
    _refuse_unknown(file, quality, sorted(_CUSTOM_KEYS), place)
    if quality["engine"] != ENGINE:
        raise file.error(
            f"rules of the engine {quality['engine']} are not run",
            (*place, "engine"),
            f"use the engine {ENGINE}",
        )
    given = quality["implementation"]
    settings: dict[str, Any] = {"rule": given} if isinstance(given, str) else dict(given)
    at = (*place, "implementation")
    name = settings.pop("rule", None)
    if name not in _OWN:
        raise file.unknown(str(name), list(_OWN), at, "rule")
    _refuse_unknown(file, settings, _OWN[name], at)
    severity = _severity(file, quality, place)
    if name == "textForm":
        return _text_form(file, settings, at, column, severity)
    for key, value in settings.items():
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if key not in OPERATORS and not is_number:
            raise file.error(f"{key}: {value!r}", (*at, key), "give a whole number from 0")
    if name == "rowsAgainstTrailingDays":
        if column is not None:
            raise file.error(f"{name} is about all columns", at, "write it below the schema")
        bound = _bound(file, settings, at, "times")
        numbers = {"days": 7, "minimumDays": 3, "minimumRows": 0}
        numbers |= {key: settings[key] for key in numbers if key in settings}
        expected = f"{bound} the median of the {numbers['days']} days before"
        rule = Rule(
            "", "rows against days before", "trailing", (), expected, bound, severity, None, numbers
        )
        return [rule]
    if column is None:
        raise file.error(f"{name} is about one column", at, _NO_COLUMN)
    if name in _NUMBERS:
        measure, words, unit, numbers = _NUMBERS[name]
        bound = _bound(file, settings, at, unit)
        numbers = numbers | {key: settings[key] for key in numbers if key in settings}
        names = (column.name,)
        return [
            Rule("", words, measure, names, str(bound), bound, severity, settings=dict(numbers))
        ]
    if name == "finite":
        return [Rule("", "finite", "not_finite", (column.name,), "no NaN or inf", NONE, severity)]
    return _inside_day(column, settings.get("clockSkewSeconds", 0), severity)


def _text_form(
    file: ContractFile,
    settings: dict[str, Any],
    place: Place,
    column: Column | None,
    severity: Severity,
) -> list[Rule]:
    """A rule for each form that is wanted; two texts that look alike are two IDs."""
    if column is None:
        raise file.error("textForm is about one column", place, _NO_COLUMN)
    if not settings:
        raise file.error("textForm wants no form", place, f"give one of {', '.join(_FORMS)}")
    rules = []
    for key, value in settings.items():
        if value not in _FORMS[key]:
            raise file.unknown(str(value), list(_FORMS[key]), (*place, key), f"choice of {key}")
        form = _FORMS[key][value]
        if form is not None:
            rules.append(
                Rule(
                    "",
                    f"text form: {key}",
                    "text_form",
                    (column.name,),
                    form,
                    NONE,
                    severity,
                    settings={"form": form},
                )
            )
    return rules


def _inside_day(column: Column, skew: int, severity: Severity) -> list[Rule]:
    """Events outside their day: up to the clock skew a warning, beyond it the given severity."""
    names = (column.name,)
    far = f"inside the day (± {skew:,} s)" if skew else "inside the day"
    rules = [
        Rule("", "inside the day", "outside_day", names, far, NONE, severity, None, {"skew": skew})
    ]
    if skew:
        rules.append(
            Rule(
                "",
                "clock skew",
                "outside_day",
                names,
                "inside the day",
                NONE,
                "warn",
                None,
                {"skew": 0, "until": skew},
            )
        )
    return rules
