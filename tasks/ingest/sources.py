"""Finds a user's files and reads them as record batches that know where each row stands."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import xxhash

from tasks.errors import DataError

_BLOCK = 1 << 22
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")
#: Rows of a batch: enough to spread the cost of a call, few enough for wide rows.
BATCH_ROWS = 131_072


@dataclass(frozen=True)
class SourceFile:
    """One file of a source."""

    fs: pafs.FileSystem
    path: str
    """Path inside `fs`."""
    shown: str
    """Path or URL as the user knows it."""
    size: int
    """Bytes."""

    @property
    def is_parquet(self) -> bool:
        """Whether it is read as Parquet; everything else is text."""
        return self.path.endswith((".parquet", ".pq"))

    @property
    def text_suffix(self) -> str:
        """Ending without that of a compression, for example `.csv` for `x.csv.gz`."""
        name = PurePosixPath(self.path)
        return PurePosixPath(name.stem).suffix if name.suffix in _COMPRESSIONS else name.suffix

    def open_stream(self) -> pa.NativeFile:
        """Opens the file for sequential reading, decompressed by its ending."""
        return self.fs.open_input_stream(self.path)

    def cannot_read(self, error: Exception) -> DataError:
        """The error for a file that its reader gave up on."""
        return DataError(
            f"cannot read the file: {error}",
            where=self.shown,
            fix="check the file, and the options --delimiter, --columns and --encoding",
        )


@dataclass(frozen=True)
class MalformedRow:
    """A row that cannot be cut into the file's columns."""

    record: int
    reason: str
    text: str | None


@dataclass
class SourceBatch:
    """Rows of one file and where they stand in it."""

    table: pa.Table
    """The columns that were asked for, as the source has them."""
    records: npt.NDArray[np.int64]
    """Number of each row's record in the file, from 1; a header line counts."""
    is_text: bool
    """Whether all values are texts from a text file."""
    malformed: list[MalformedRow] = field(default_factory=list)
    """Rows between those of this batch and the batch before that could not be read."""


def find_files(source: str, pattern: str = "*") -> list[SourceFile]:
    """The files of a source in a fixed order: a file, a folder's files, or a glob's.

    Args:
        source: Path, glob, or `pyarrow.fs` URL of a file or folder.
        pattern: Which file names of a folder count.

    Raises:
        DataError: Nothing is there.
    """
    if "://" not in source and any(mark in source for mark in "*?["):
        found = [file for path in sorted(glob.glob(source)) for file in _below(path, pattern)]
    else:
        found = _below(source, pattern)
    if not found:
        raise DataError(
            "there is no file to read",
            where=source if pattern == "*" else f"{source} (files: {pattern})",
            fix="give a file, a folder, a quoted glob or a URL such as s3://bucket/folder",
        )
    return found


def _below(source: str, pattern: str) -> list[SourceFile]:
    try:
        if "://" in source:
            fs, root = pafs.FileSystem.from_uri(source)
        else:
            fs, root = pafs.LocalFileSystem(), source
        info = fs.get_file_info(root)
        if info.type == pafs.FileType.File:
            return [SourceFile(fs, info.path, source, info.size)]
        if info.type == pafs.FileType.NotFound:
            return []
        inside = fs.get_file_info(pafs.FileSelector(root, recursive=True))
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            f"cannot look for files: {error}", where=source, fix="check the location"
        ) from error
    prefix = source.removesuffix("/")
    return [
        SourceFile(fs, entry.path, f"{prefix}{entry.path[len(root.rstrip('/')) :]}", entry.size)
        for entry in sorted(inside, key=lambda entry: entry.path)
        if entry.is_file
        and not entry.base_name.startswith((".", "_"))
        and fnmatch.fnmatch(entry.base_name, pattern)
    ]


def digest_files(files: Sequence[SourceFile]) -> str:
    """XXH3-128 over the contents of the files; their names and places do not count."""
    state = xxhash.xxh3_128()
    for file in files:
        state.update(f"file {file.size} {file.is_parquet}\n".encode())
        with file.fs.open_input_file(file.path) as stream:
            while block := stream.read(_BLOCK):
                state.update(block)
    return state.hexdigest()


def parquet_columns(file: SourceFile) -> pa.Schema:
    """Column names and types of a Parquet file."""
    try:
        with file.fs.open_input_file(file.path) as stream:
            return pq.read_schema(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise file.cannot_read(error) from error


def read_parquet(file: SourceFile, columns: Sequence[str]) -> Iterator[SourceBatch]:
    """Reads the named columns of a Parquet file batch by batch."""
    next_record = 1
    try:
        with file.fs.open_input_file(file.path) as stream:
            parquet = pq.ParquetFile(stream)
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=list(columns)):
                records = np.arange(next_record, next_record + batch.num_rows)
                next_record += batch.num_rows
                yield SourceBatch(pa.Table.from_batches([batch]), records, is_text=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise file.cannot_read(error) from error
