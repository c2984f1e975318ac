"""Reads delimited text files of any size, keeping every value as the text that it is."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
from typing_extensions import Buffer

from tasks.errors import DataError
from tasks.ingest.mapping import FileSettings
from tasks.ingest.sources import MalformedRow, SourceBatch, SourceFile

_BLOCK_BYTES = 8 << 20
#: Stands for a delimiter of several characters: ASCII's own unit separator.
_UNIT_SEPARATOR = "\x1f"


class _Lines(io.RawIOBase):
    """Byte stream that counts lines and swaps a long delimiter for a single character."""

    def __init__(self, stream: pa.NativeFile, delimiter: str, shown: str) -> None:
        self._stream = stream
        self._delimiter = delimiter.encode()
        self._held = b""
        self._shown = shown
        self.newlines = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Reads `size` bytes, fewer only at the end of the file."""
        wanted = _BLOCK_BYTES if size < 0 else size
        parts = []
        # Decompressors give a little at a time, but a record must fit into two blocks.
        while wanted > 0 and (part := bytes(self._stream.read(wanted))):
            parts.append(part)
            wanted -= len(part)
        block = b"".join(parts)
        self.newlines += block.count(b"\n")
        if len(self._delimiter) == 1:
            return block
        return self._swap(block, size)

    def readinto(self, buffer: Buffer) -> int:
        """Fills a buffer; what was held back before may come on top of what is read."""
        view = memoryview(buffer).cast("B")
        block = self.read(len(view) - len(self._delimiter) + 1)
        view[: len(block)] = block
        return len(block)

    def _swap(self, block: bytes, size: int) -> bytes:
        separator = _UNIT_SEPARATOR.encode()
        if separator in block:
            raise DataError(
                f"a file with the delimiter '{self._delimiter.decode()}' must not hold the "
                "character U+001F",
                where=self._shown,
                fix="remove it",
            )
        *whole, rest = (self._held + block).split(self._delimiter)
        # A delimiter may be cut in two by the end of the block: hold back what could be its start.
        keep = 0
        if block:
            for length in range(len(self._delimiter) - 1, 0, -1):
                if rest.endswith(self._delimiter[:length]):
                    keep = length
                    break
        self._held = rest[len(rest) - keep :]
        swapped = separator.join([*whole, rest[: len(rest) - keep]])
        # An empty answer would mean the end of the file.
        return swapped or (self.read(size) if block else b"")


class DelimitedReader:
    """One delimited file.

    Args:
        file: The file.
        settings: Delimiter, header, quotation and encoding.
    """

    def __init__(self, file: SourceFile, settings: FileSettings) -> None:
        self.file = file
        self._settings = settings
        by_ending = "\t" if file.text_suffix in (".tsv", ".tab") else ","
        self.delimiter = settings.delimiter or by_ending
        self._quote = settings.quote if len(self.delimiter.encode()) == 1 else None
        self._last_record = 0
        self._newlines = 0

    def columns(self) -> list[str]:
        """Names of the columns, from the settings or the header line."""
        if self._settings.columns is not None:
            return list(self._settings.columns)
        with self._open() as stream:
            try:
                return list(pacsv.open_csv(stream, **self._options(None, [])).schema.names)
            except (pa.ArrowInvalid, OSError) as error:
                raise self.file.cannot_read(error) from error

    def read(self, columns: Sequence[str]) -> Iterator[SourceBatch]:
        """Reads the named columns as texts, batch by batch."""
        malformed: list[MalformedRow] = []
        record = 0 if self._settings.columns is not None else 1
        with self._open() as stream:
            try:
                with pacsv.open_csv(stream, **self._options(columns, malformed)) as reader:
                    for batch in reader:
                        records, record, skipped = _number(batch.num_rows, record, malformed)
                        table = pa.Table.from_batches([batch]).select(list(columns))
                        yield SourceBatch(table, records, is_text=True, malformed=skipped)
            except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
                raise self.file.cannot_read(error) from error
            if malformed:
                record = malformed[-1].record
                empty = pa.table({name: pa.array([], pa.string()) for name in columns})
                none = np.empty(0, np.int64)
                yield SourceBatch(empty, none, is_text=True, malformed=list(malformed))
            self._last_record, self._newlines = record, stream.newlines

    def lines_of(self, records: Sequence[int]) -> dict[int, int]:
        """Line on which each record starts; to be asked after `read` is through.

        Record and line are the same unless a quoted value spans lines; then the file is read
        again up to the last record asked for.
        """
        if self._newlines <= self._last_record or not records:
            return {record: record for record in records}
        wanted, lines = set(records), {}
        settings = self._settings
        with self._open() as stream:
            text = io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8", newline="")
            reader = csv.reader(text, delimiter=self.delimiter, quotechar=settings.quote)
            line = 1
            for number, _ in enumerate(reader, start=1):
                if number in wanted:
                    lines[number] = line
                if number >= max(wanted):
                    break
                line = reader.line_num + 1
        return lines

    def _open(self) -> _Lines:
        stream = self.file.open_stream()
        if self._settings.encoding.lower().replace("-", "") != "utf8":
            try:
                stream = pa.transcoding_input_stream(stream, self._settings.encoding, "utf-8")
            except LookupError as error:
                raise DataError(
                    f"unknown encoding '{self._settings.encoding}'",
                    where=self.file.shown,
                    fix="use one such as utf-8, latin-1, utf-16",
                ) from error
        return _Lines(stream, self.delimiter, self.file.shown)

    def _options(
        self, columns: Sequence[str] | None, malformed: list[MalformedRow]
    ) -> dict[str, object]:
        def skip(row: pacsv.InvalidRow) -> str:
            reason = f"{row.actual_columns} columns instead of {row.expected_columns}"
            malformed.append(MalformedRow(row.number, reason, row.text))
            return "skip"

        delimiter = self.delimiter if len(self.delimiter.encode()) == 1 else _UNIT_SEPARATOR
        names = self._settings.columns
        return {
            # Without threads, rows are parsed in order and know their number.
            "read_options": pacsv.ReadOptions(
                use_threads=False,
                block_size=_BLOCK_BYTES,
                column_names=list(names) if names is not None else None,
            ),
            "parse_options": pacsv.ParseOptions(
                delimiter=delimiter,
                quote_char=self._quote or False,
                newlines_in_values=self._quote is not None,
                ignore_empty_lines=False,
                invalid_row_handler=skip,
            ),
            "convert_options": pacsv.ConvertOptions(
                include_columns=list(columns) if columns is not None else None,
                column_types={name: pa.string() for name in columns or ()},
                strings_can_be_null=False,
            ),
        }


def _number(
    rows: int, last: int, malformed: list[MalformedRow]
) -> tuple[npt.NDArray[np.int64], int, list[MalformedRow]]:
    """Record numbers of the next `rows` good rows after record `last`.

    Takes the malformed rows among them off the list.
    """
    candidates = np.arange(last + 1, last + 1 + rows + len(malformed))
    bad = np.array([row.record for row in malformed], dtype=np.int64)
    records = candidates[~np.isin(candidates, bad)][:rows]
    end = int(records[-1]) if rows else last
    skipped = [row for row in malformed if row.record < end]
    del malformed[: len(skipped)]
    return records, end, skipped
