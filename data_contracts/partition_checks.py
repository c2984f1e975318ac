"""Checks of the values of files, in bounded batches; results merge exactly over files.

Conditions on values run in Great Expectations on each batch's frame, with pyarrow-backed types:
an ID never becomes a float. Counts that Arrow has a kernel for are taken from Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts import arrow_types
from data_contracts.contract import Contract
from data_contracts.data_files import BATCH_ROWS, DataFiles, UnreadableFileError
from data_contracts.footer_checks import Footer
from data_contracts.rules import Rule, shown

if TYPE_CHECKING:
    import pandas as pd

    from data_contracts.expectations import FrameValidation

SAMPLES = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MICROS = 86_400_000_000
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


@dataclass
class Tally:
    """The number behind one rule, mergeable over files.

    Attributes:
        count: Rows (or list elements) that break the rule's condition.
        of: Rows (or list elements) that were looked at.
        low: Smallest value, for the measure `smallest`.
        high: Largest value, for the measure `largest`; for `staleness` the newest event, in
            microseconds since 1970.
        samples: Some of the values that break it.
        files: Count by file.
    """

    count: int = 0
    of: int = 0
    low: float | None = None
    high: float | None = None
    samples: list[str] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)

    def merge(self, other: Tally) -> None:
        """Adds another file's tally."""
        self.count += other.count
        self.of += other.of
        self.low = min((n for n in (self.low, other.low) if n is not None), default=None)
        self.high = max((n for n in (self.high, other.high) if n is not None), default=None)
        self.samples = (self.samples + other.samples)[:SAMPLES]
        for name, count in other.files.items():
            self.files[name] = self.files.get(name, 0) + count


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


Tallies = dict[str, Tally]


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
    waiting: list[_Frame] = []
    for file in files:
        tallies: Tallies = {}
        try:
            file.data.verify(file.footer.file)
            for frame in _measure(contract, file, tallies):
                waiting.append(frame)
                if sum(len(other.batch) for other in waiting) >= BATCH_ROWS:
                    _check_values(contract, waiting)
                    waiting = []
        except UnreadableFileError as error:
            found.append(error)
        else:
            found.append(tallies)
    _check_values(contract, waiting)
    return found


@dataclass(frozen=True)
class _Frame:
    """A batch of a file whose values are still to be checked, and where the result goes."""

    rules: tuple[Rule, ...]
    batch: pa.RecordBatch
    file: str
    tallies: Tallies


def _measure(contract: Contract, file: FileOfDay, tallies: Tallies) -> Iterator[_Frame]:
    """Fills the tallies that Arrow measures; yields the batches left to Great Expectations."""
    footer = file.footer
    reading = []
    for rule in contract.rules:
        if not _applies(rule, footer, file.day):
            continue
        tallies[rule.key] = Tally()
        if rule.measure == "nulls" and rule.column[0] in footer.nulls:
            count = footer.nulls[rule.column[0]]
            tallies[rule.key].merge(_tally(footer.file.name, count, footer.rows))
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
                tally = _tally(footer.file.name, count, len(column), samples, personal)
                tally.low, tally.high = low, high
                tallies[rule.key].merge(tally)
        if by_value:
            yield _Frame(by_value, batch, footer.file.name, tallies)
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


def _tally(
    file: str,
    count: int,
    of: int,
    samples: Sequence[object] = (),
    personal: bool = False,
) -> Tally:
    return Tally(
        count=count,
        of=of,
        samples=[shown(value, personal=personal) for value in samples],
        files={file: count} if count else {},
    )


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
        return pc.not_equal(pc.utf8_normalize(texts, form), texts)

    return mask


def _unprintable(texts: pa.Array) -> pa.Array:
    # The kernel for ASCII is six times faster, and most IDs are ASCII.
    is_ascii = pc.all(pc.string_is_ascii(texts)).as_py() is not False
    return pc.invert(pc.ascii_is_printable(texts) if is_ascii else pc.utf8_is_printable(texts))


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
    micros = _micros(column)
    start = (day - _EPOCH.date()).days * _DAY_MICROS
    mask = _beyond(micros, start, rule.settings["skew"])
    if "until" in rule.settings:
        mask = pc.and_not(mask, _beyond(micros, start, rule.settings["until"]))
    return _count(mask), [_moment(value) for value in _sample(micros, mask)], _NO_RANGE


def _beyond(micros: pa.Array, start: int, seconds: int) -> pa.Array:
    low, high = start - seconds * 1_000_000, start + _DAY_MICROS + seconds * 1_000_000
    return pc.or_(pc.less(micros, low), pc.greater_equal(micros, high))


def _staleness(rule: Rule, column: pa.Array, day: date | None) -> _Measured:
    return 0, [], (None, pc.max(_micros(column)).as_py())


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


def _micros(column: pa.Array) -> pa.Array:
    """Microseconds since 1970; int64 columns hold them already. Finer units are cut off."""
    if pa.types.is_timestamp(column.type):
        zone = column.type.tz
        return pc.cast(pc.cast(column, pa.timestamp("us", zone), safe=False), pa.int64())
    return pc.cast(column, pa.int64())


def _moment(micros: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=micros)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return f"{micros} us"


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _sample(values: pa.Array, mask: pa.Array) -> list[Any]:
    return list(values.filter(mask).slice(0, SAMPLES).to_pylist())


# Values by Great Expectations ---------------------------------------------------------------


def _check_values(contract: Contract, frames: Sequence[_Frame]) -> None:
    """Runs the conditions on values and adds what they find to the frames' tallies."""
    alike: dict[object, list[_Frame]] = {}
    for frame in frames:
        rules = tuple(rule.key for rule in frame.rules)
        alike.setdefault((rules, str(frame.batch.schema)), []).append(frame)
    for group in alike.values():
        if len(group) > 1 and _all_good(contract, group):
            for frame in group:
                for rule, looked_at in _views(frame):
                    frame.tallies[rule.key].merge(_tally(frame.file, 0, looked_at))
        else:
            for frame in group:
                _check_frame(contract, frame)


def _all_good(contract: Contract, frames: Sequence[_Frame]) -> bool:
    """Whether no value of frames with equal rules and schema breaks anything."""
    table = pa.Table.from_batches([frame.batch for frame in frames]).combine_chunks()
    whole = _Frame(frames[0].rules, table.to_batches()[0], "", {})
    return all(
        outcome.unexpected == 0
        for rules, values in _suites(whole)
        for outcome in _validation(contract, rules).run(_frame(values)).values()
    )


def _check_frame(contract: Contract, frame: _Frame) -> None:
    for rules, values in _suites(frame):
        outcomes = _validation(contract, rules).run(_frame(values))
        for rule in rules:
            outcome = outcomes[rule.key]
            sample: Sequence[object] = outcome.sample
            if _is_moment(rule, frame.batch):
                sample = [_moment(int(str(value))) for value in sample]
            personal = contract.is_personal(rule.column)
            tally = _tally(frame.file, outcome.unexpected, values.num_rows, sample, personal)
            frame.tallies[rule.key].merge(tally)


def _suites(frame: _Frame) -> Iterator[tuple[tuple[Rule, ...], pa.Table]]:
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


def _views(frame: _Frame) -> Iterator[tuple[Rule, int]]:
    """Every rule and the number of values that it looks at."""
    for rules, table in _suites(frame):
        for rule in rules:
            yield rule, table.num_rows


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
    return _micros(column) if pa.types.is_timestamp(column.type) else column


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
