"""Turns a column of times, however it is written, into microseconds since 1970 in UTC."""

from __future__ import annotations

import numpy as np
import polars as pl

from tasks.errors import DataError

_EPOCH_FACTOR = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}
#: A median from this on is taken for the unit; smaller numbers are not taken for times at all.
_SMALLEST = (("ns", 1e17), ("us", 1e14), ("ms", 1e11), ("s", 1e8))
_CLOCKS = ("%H:%M:%S%.f", "%H:%M")
_OFFSETS = ("%#z", " %#z", " UTC")
_WITH_OFFSET = [
    f"%Y-%m-%d{gap}{clock}{offset}" for gap in "T " for clock in _CLOCKS for offset in _OFFSETS
]
_WITHOUT_OFFSET = [f"%Y-%m-%d{gap}{clock}" for gap in "T " for clock in _CLOCKS] + ["%Y-%m-%d"]
#: Times outside 1970 to 2099 are taken for errors of the source.
EARLIEST_US = 0
LATEST_US = 4_102_444_800_000_000


class TimeParser:
    """Reads one column; what `auto` means is decided once, on the first rows that have a time.

    Args:
        time_format: As in `FileSettings.time_format`.
        timezone: Zone of times without an offset.
    """

    def __init__(self, time_format: str, timezone: str) -> None:
        self._format = time_format
        self._timezone = timezone
        self._unit: str | None = time_format if time_format in _EPOCH_FACTOR else None
        # Formats that have matched come first, so that most batches need one pass.
        self._formats = [*_WITHOUT_OFFSET, *_WITH_OFFSET]
        self.rule: str | None = None

    def parse(self, values: pl.Series, where: str) -> pl.Series:
        """Microseconds ``[N]`` (Int64); null where a value is missing or is no time.

        Raises:
            DataError: No rule fits any of the first values.
        """
        dtype = values.dtype
        if isinstance(dtype, pl.Datetime):
            self.rule = self.rule or (
                "timestamps with a zone, converted to UTC"
                if dtype.time_zone
                else f"timestamps without a zone, taken as {self._timezone}"
            )
            return self._to_utc_us(values)
        if dtype == pl.Date:
            self.rule = self.rule or f"dates, taken as midnight {self._timezone}"
            return self._to_utc_us(values.cast(pl.Datetime("us")))
        if dtype.is_numeric():
            return self._epoch(values.cast(pl.Float64), values, where)
        if dtype != pl.String:
            raise DataError(
                f"a column of type {dtype} cannot be the timestamp", where=where, fix="map another"
            )
        if "%" in self._format:
            self.rule = f"texts like {self._format}, zone {self._timezone} unless they name one"
            return self._texts(values, [self._format])
        if self._unit is None and self._format == "auto" and self.rule is None:
            present = values.drop_nulls()
            digits = present.str.contains(r"^\s*\d+(\.\d+)?\s*$")
            if len(present) and digits.sum() * 2 > len(present):
                return self._epoch(_numbers(values), values, where)
        if self._unit is not None:
            return self._epoch(_numbers(values), values, where)
        parsed = self._texts(values, self._formats)
        if self.rule is None and values.null_count() < len(values):
            if parsed.null_count() == len(parsed):
                example = values.drop_nulls()[0]
                raise DataError(
                    f"cannot tell how times are written: '{example}'",
                    where=where,
                    fix="name the pattern, for example --time-format '%d/%m/%Y %H:%M'",
                )
            self.rule = f"ISO 8601 texts, zone {self._timezone} unless they name one"
        return parsed

    def _epoch(self, numbers: pl.Series, given: pl.Series, where: str) -> pl.Series:
        if self._unit is None:
            present = numbers.drop_nans().drop_nulls().abs().to_numpy()
            if not len(present):
                return numbers.cast(pl.Int64, strict=False)
            typical = float(np.median(present))
            unit = next((unit for unit, least in _SMALLEST if typical >= least), None)
            if unit is None or self._format == "iso":
                example = given.drop_nulls()[0]
                raise DataError(
                    f"cannot tell what the number {example} means as a time",
                    where=where,
                    fix="name it: --time-format s, ms, us, ns, or a pattern such as %Y%m%d",
                )
            self._unit = unit
        self.rule = f"numbers, taken as epoch {self._unit}"
        if self._unit == "us" and given.dtype.is_integer():
            return given.cast(pl.Int64, strict=False)
        scaled = numbers * _EPOCH_FACTOR[self._unit]
        # Anything beyond this is out of range anyway and would not fit an integer.
        return scaled.clip(-9e18, 9e18).floor().cast(pl.Int64, strict=False)

    def _texts(self, values: pl.Series, formats: list[str]) -> pl.Series:
        parsed = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(values))
        values = values.str.strip_chars()
        for pattern in list(formats):
            open_ = parsed.is_null() & values.is_not_null()
            if not open_.any():
                break
            rest = values.zip_with(
                open_, pl.Series([None], dtype=pl.String).new_from_index(0, len(values))
            )
            found = self._parse_pattern(rest, pattern)
            if found.null_count() < len(found):
                parsed = parsed.zip_with(found.is_null(), found)
                formats.remove(pattern)
                formats.insert(0, pattern)
        return parsed

    def _parse_pattern(self, values: pl.Series, pattern: str) -> pl.Series:
        try:
            if not any(part in pattern for part in ("%H", "%I", "%T", "%R", "%s", "%c", "%X")):
                return self._to_utc_us(
                    values.str.to_date(pattern, strict=False).cast(pl.Datetime("us"))
                )
            found = values.str.to_datetime(
                pattern, strict=False, time_unit="us", ambiguous="earliest"
            )
        except pl.exceptions.PolarsError as error:
            raise DataError(
                f"not a pattern of times: {error}",
                where=f"--time-format {pattern}",
                fix="correct it",
            ) from error
        return self._to_utc_us(found)

    def _to_utc_us(self, values: pl.Series) -> pl.Series:
        values = values.cast(pl.Datetime("us", getattr(values.dtype, "time_zone", None)))
        if getattr(values.dtype, "time_zone", None) is None:
            # An hour that a clock change skips has no UTC time; one that it repeats has two.
            values = values.dt.replace_time_zone(
                self._timezone, ambiguous="earliest", non_existent="null"
            )
        return values.dt.epoch("us")


def _numbers(values: pl.Series) -> pl.Series:
    return values.str.strip_chars().cast(pl.Float64, strict=False)
