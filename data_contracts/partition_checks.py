"""Checks of the values of files, in bounded batches; results merge exactly over files.

Conditions on values run in Great Expectations on each batch's frame, with pyarrow-backed types:
an ID never becomes a float. Counts that Arrow has a kernel for are taken from Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts import arrow_types
from data_contracts.contract import Contract
from data_contracts.data_files import BATCH_ROWS, DataFiles, UnreadableFileError
from data_contracts.event_times import EPOCH, micros, moment
from data_contracts.footer_checks import Footer
from data_contracts.frame_checks import Frame, check_values
from data_contracts.rules import Rule
from data_contracts.tally import SAMPLES, Tallies, Tally, tally_of

_DAY_MICROS = 86_400_000_000
#: Rows that are held before Great Expectations is asked, which has a price for every call.
FRAME_ROWS = 2 * BATCH_ROWS
#: Measures that read the values of a file; the others come from footers or from the whole day.
READING = (
    "nulls",
    "null_elements",
    "missing",
    "values",
    "text_form",
    "not_finite",
    "outside_day",
    "staleness",
    "smallest",
    "largest",
)


@dataclass(frozen=True)
class FileOfDay:
    """A file to check.

    Attributes:
        data: Where the file lies.
        footer: Its footer; nulls that it counts are not counted again.
        day: Day that its events belong to; without one, rules about the day are left out.
    """

    data: DataFiles
    footer: Footer
    day: date | None


def check_files(
    contract: Contract, files: Sequence[FileOfDay]
) -> list[Tallies | UnreadableFileError]:
    """Checks the values of files.

    Great Expectations has a price for every frame, so small files share one; only when it finds
    something are their frames checked one by one.

    Args:
        contract: The contract.
        files: The files, of any days.

    Returns:
        For each file the tally of every rule that applies to it, by the rule's key, or why it
        cannot be read.
    """
    found: list[Tallies | UnreadableFileError] = []
    waiting: list[Frame] = []
    for file in files:
        tallies: Tallies = {}
        try:
            file.data.verify(file.footer.file)
            for frame in _measure(contract, file, tallies):
                waiting.append(frame)
                if sum(len(other.batch) for other in waiting) >= FRAME_ROWS:
                    check_values(contract, waiting)
                    waiting = []
        except UnreadableFileError as error:
            found.append(error)
        else:
            found.append(tallies)
    check_values(contract, waiting)
    return found


def _measure(contract: Contract, file: FileOfDay, tallies: Tallies) -> Iterator[Frame]:
    """Fills the tallies that Arrow measures; yields the batches left to Great Expectations."""
    footer = file.footer
    reading = []
    for rule in contract.rules:
        if not _applies(rule, footer, file.day):
            continue
        tallies[rule.key] = Tally()
        if rule.measure == "nulls" and rule.column[0] in footer.nulls:
            count = footer.nulls[rule.column[0]]
            tallies[rule.key].merge(tally_of(footer.file.name, count, footer.rows))
        else:
            reading.append(rule)
    # Keys are read here too, so that a damaged page is found before they are counted.
    keys = {name for rule in contract.rules if rule.measure == "duplicates" for name in rule.column}
    columns = sorted({rule.column[0] for rule in reading} | (keys & set(footer.types)))
    if not columns or not footer.rows:
        return
    by_value = tuple(rule for rule in reading if rule.check is not None)
    rows = 0
    for batch in file.data.batches(footer.file, columns):
        rows += len(batch)
        for rule in reading:
            if rule.check is None:
                column = batch.column(rule.column[0])
                count, samples, (low, high) = _MEASURES[rule.measure](rule, column, file.day)
                personal = contract.is_personal(rule.column)
                tally = tally_of(footer.file.name, count, len(column), samples, personal)
                tally.low, tally.high = low, high
                tallies[rule.key].merge(tally)
        if by_value:
            yield Frame(by_value, batch, footer.file.name, tallies)
    if rows != footer.rows:
        raise UnreadableFileError(f"damaged: {rows:,} rows, its footer says {footer.rows:,}")


def _applies(rule: Rule, footer: Footer, day: date | None) -> bool:
    if rule.measure not in READING or rule.column[0] not in footer.types:
        return False
    if rule.measure in ("outside_day", "staleness"):
        return day is not None
    kind = footer.types[rule.column[0]]
    if rule.check is not None and rule.check.view == "elements":
        kind = kind[5:-1]
    if rule.measure == "text_form":
        return kind == "string"
    if rule.measure in ("smallest", "largest"):
        return arrow_types.is_number(kind)
    return rule.check is None or not rule.check.applies_to or kind in rule.check.applies_to


# Measures by Arrow: count, samples, smallest and largest value ------------------------------

_Range = tuple[float | None, float | None]
_Measured = tuple[int, list[Any], _Range]
_NO_RANGE: _Range = (None, None)


def _nulls(rule: Rule, column: pa.Array, day: date | None) -> _Measured:
    return column.null_count, [], _NO_RANGE


def _null_elements(rule: Rule, column: pa.Array, day: date | None) -> _Measured:
    return pc.list_flatten(column).null_count, [], _NO_RANGE


def _text_form(rule: Rule, column: pa.Array, day: date | None) -> _Measured:
    """Texts that are not in the wanted form, which a person may not see by looking at them."""
    mask = _OTHER_FORM[rule.settings["form"]](column)
    return _count(mask), _sample(column, mask), _NO_RANGE


def _not_normal(form: str) -> Callable[[pa.Array], pa.Array]:
    def mask(texts: pa.Array) -> pa.Array:
        if _is_ascii(texts):  # which has one form only
            return pa.nulls(len(texts), pa.bool_())
        return pc.not_equal(pc.utf8_normalize(texts, form), texts)

    return mask


def _unprintable(texts: pa.Array) -> pa.Array:
    # The kernel for ASCII is six times faster, and most IDs are ASCII.
    is_printable = pc.ascii_is_printable if _is_ascii(texts) else pc.utf8_is_printable
    return pc.invert(is_printable(texts))


def _is_ascii(texts: pa.Array) -> bool:
    return pc.all(pc.string_is_ascii(texts)).as_py() is not False


_OTHER_FORM: dict[str, Callable[[pa.Array], pa.Array]] = {
    **{form: _not_normal(form) for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "trimmed": lambda texts: pc.not_equal(pc.utf8_trim_whitespace(texts), texts),
    "without blanks": lambda texts: pc.match_substring_regex(texts, r"\s"),
    "visible": _unprintable,
    "lower": lambda texts: pc.not_equal(pc.utf8_lower(texts), texts),
    "upper": lambda texts: pc.not_equal(pc.utf8_upper(texts), texts),
}


def _missing(rule: Rule, column: pa.Array, day: date | None) -> _Measured:
    """Nulls and the texts that stand for a missing value, such as an empty one."""
    texts = pc.cast(column, pa.string())
    named = pc.is_in(texts, value_set=pa.array(rule.settings["missing"], pa.string()))
    mask = pc.or_(named, pc.is_null(texts))
    return _count(mask), _sample(column, pc.and_(mask, pc.is_valid(texts))), _NO_RANGE


def _not_finite(rule: Rule, column: pa.Array, day: date | None) -> _Measured:
    if not pa.types.is_floating(column.type):
        return 0, [], _NO_RANGE
    mask = pc.invert(pc.is_finite(column))
    return _count(mask), _sample(column, mask), _NO_RANGE


def _outside_day(rule: Rule, column: pa.Array, day: date | None) -> _Measured:
    """Events before the day's start or after its end by more than the skew.

    With `until`, only those within that many seconds: the ones that another rule forgives.
    """
    assert day is not None
    times = micros(column)
    start = (day - EPOCH.date()).days * _DAY_MICROS
    mask = _beyond(times, start, rule.settings["skew"])
    if "until" in rule.settings:
        mask = pc.and_not(mask, _beyond(times, start, rule.settings["until"]))
    return _count(mask), [moment(value) for value in _sample(times, mask)], _NO_RANGE


def _beyond(times: pa.Array, start: int, seconds: int) -> pa.Array:
    low, high = start - seconds * 1_000_000, start + _DAY_MICROS + seconds * 1_000_000
    return pc.or_(pc.less(times, low), pc.greater_equal(times, high))


def _staleness(rule: Rule, column: pa.Array, day: date | None) -> _Measured:
    return 0, [], (None, pc.max(micros(column)).as_py())


def _range(rule: Rule, column: pa.Array, day: date | None) -> _Measured:
    """Smallest and largest number; NaN is neither."""
    found = pc.min_max(column)
    return 0, [], (found["min"].as_py(), found["max"].as_py())


_MEASURES: dict[str, Callable[[Rule, pa.Array, date | None], _Measured]] = {
    "nulls": _nulls,
    "null_elements": _null_elements,
    "text_form": _text_form,
    "missing": _missing,
    "not_finite": _not_finite,
    "outside_day": _outside_day,
    "staleness": _staleness,
    "smallest": _range,
    "largest": _range,
}


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _sample(values: pa.Array, mask: pa.Array) -> list[Any]:
    return list(values.filter(mask).slice(0, SAMPLES).to_pylist())
