"""The Parquet files of one day of one data set, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import xxhash

#: Rows that are held in memory at once.
BATCH_ROWS = 500_000
_HASH_BLOCK = 1 << 22
#: What Arrow raises about a damaged file, depending on where the damage is.
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError)

#: Size and time of the last change (nanoseconds since 1970); None where a store knows neither.
FileState = tuple[int | None, int | None]


@dataclass(frozen=True)
class DataFile:
    """One file.

    Attributes:
        name: Name that a person is shown.
        path: Path in its file system.
        bytes: Size that its manifest states, if there is a manifest.
        digest: Digest of its content that its manifest states.
    """

    name: str
    path: str
    bytes: int | None = None
    digest: str | None = None


class UnreadableFileError(Exception):
    """A file is not Parquet, is damaged, or may not be read; the message says which."""


@dataclass(frozen=True)
class DataFiles:
    """The files of one day, in a `pyarrow.fs` file system.

    Attributes:
        fs: The file system.
        files: The files.
        left_out: Names of files beside them that nobody will read.
    """

    fs: pafs.FileSystem
    files: tuple[DataFile, ...]
    left_out: tuple[str, ...] = ()

    @contextmanager
    def open(self, file: DataFile) -> Iterator[pq.ParquetFile]:
        """Opens a file.

        Raises:
            UnreadableFileError: It cannot be opened, or reading fails inside the context.
        """
        try:
            with self.fs.open_input_file(file.path) as stream:
                try:
                    yield pq.ParquetFile(stream, page_checksum_verification=True)
                except _DAMAGE as error:
                    raise UnreadableFileError(_diagnosis(stream, error)) from error
        except OSError as error:
            raise UnreadableFileError(_first_line(error)) from error

    def batches(self, file: DataFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Reads columns of a file in bounded batches; dictionaries are decoded.

        Raises:
            UnreadableFileError: The file is damaged.
        """
        with self.open(file) as parquet:
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=list(columns)):
                # Arrow does not look whether texts are UTF-8 before something trips over them.
                batch.validate(full=True)
                yield _plain(batch)

    def types(self, file: DataFile, columns: Sequence[str]) -> dict[str, pa.DataType]:
        """Types that the columns have in `batches`.

        Raises:
            UnreadableFileError: The file is damaged.
        """
        with self.open(file) as parquet:
            schema = parquet.schema_arrow
            return {name: _plain_type(schema.field(name).type) for name in columns}

    def verify(self, file: DataFile) -> None:
        """Compares the content with the digest that the manifest states, if it states one.

        Raises:
            UnreadableFileError: It is another content, or cannot be read.
        """
        if file.digest is not None and self.digest(file) != file.digest:
            raise UnreadableFileError("another content than its manifest says")

    def digest(self, file: DataFile) -> str:
        """XXH3-128 of the content, as manifests state it.

        Raises:
            UnreadableFileError: It cannot be read.
        """
        state = xxhash.xxh3_128()
        try:
            with self.fs.open_input_file(file.path) as stream:
                while block := stream.read(_HASH_BLOCK):
                    state.update(block)
        except OSError as error:
            raise UnreadableFileError(_first_line(error)) from error
        return state.hexdigest()

    def states(self, files: Sequence[DataFile]) -> list[FileState]:
        """Size and time of the last change of files."""
        found = self.fs.get_file_info([file.path for file in files])
        return [(info.size, info.mtime_ns) for info in found]


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with one storage for each kind of value, so that batches of all files agree."""
    fields = [pa.field(field.name, _plain_type(field.type)) for field in batch.schema]
    return batch.cast(pa.schema(fields))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.string() if is_text else kind


def _diagnosis(stream: pa.NativeFile, error: Exception) -> str:
    """Why a file is not readable, in words that tell what happened to it."""
    size = stream.size()
    if size == 0:
        return "the file has 0 bytes"
    stream.seek(0)
    start = bytes(stream.read(4))
    stream.seek(max(0, size - 4))
    end = bytes(stream.read(4))
    if start == b"PAR1" and end != b"PAR1":
        return f"cut off: {size:,} bytes without Parquet's end"
    if start != b"PAR1":
        return f"not Parquet: starts with {start!r}"
    return f"damaged: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
