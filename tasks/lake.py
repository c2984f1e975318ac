"""The lake: daily data sets on any `pyarrow.fs` file system, published by manifest.

An output is written into an attempt folder of its own and becomes visible when
`manifest.json`, written last, names its files; nothing is ever renamed into place, so the same
rule holds on an object store. A derived data set's folder carries a key: the digest of its
inputs and settings. Same inputs again means the same folder, and no work.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import xxhash
from pydantic import Field, ValidationError

from models.config import Settings
from tasks.config import digest_of
from tasks.errors import DataError, LakeError

MANIFEST = "manifest.json"
SUCCESS = "_SUCCESS"
_PARTITION = re.compile(r"^dt=(\d{4}-\d{2}-\d{2})$")
_BLOCK = 1 << 22
_UNFINISHED = ".tmp"
"""End of the name of a file that is still being written."""


class FileEntry(Settings):
    """One file of a published output."""

    path: str
    """Path relative to the manifest's folder."""
    bytes: int
    """Size."""
    rows: int | None = None
    """Rows, for Parquet files."""
    digest: str
    """XXH3-128 of the content."""


class Manifest(Settings):
    """What an output holds and what it was made from."""

    dataset: str
    """Data set, for example `counts/item`."""
    day: date | None = None
    """Day of the partition."""
    files: tuple[FileEntry, ...]
    """The files, by path."""
    rows: int
    """Rows in all Parquet files."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Digest of each input's manifest, by name."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that shaped the output."""
    meta: dict[str, Any] = Field(default_factory=dict)
    """What the next step needs to know about the content."""

    def digest(self) -> str:
        """Identity of the output: its content and what it was made from.

        The attempt's folder does not count, so two runs that write the same bytes agree.
        """
        body = self.model_dump(mode="json")
        body["files"] = [
            {**entry, "path": entry["path"].rsplit("/", 1)[-1]} for entry in body["files"]
        ]
        return digest_of(body)


@dataclass(frozen=True)
class Published:
    """A published output: where it is and what its manifest says."""

    path: str
    manifest: Manifest
    reused: bool = False

    def files(self) -> list[str]:
        """Paths of the files, relative to the lake's root."""
        return [f"{self.path}/{entry.path}" for entry in self.manifest.files]

    def tables(self) -> list[str]:
        """Paths of the Parquet files, relative to the lake's root."""
        return [path for path in self.files() if path.endswith(".parquet")]

    def file(self, name: str) -> str:
        """Path of the file whose path ends with `name`, relative to the lake's root."""
        for entry in self.manifest.files:
            if entry.path == name or entry.path.endswith("/" + name):
                return f"{self.path}/{entry.path}"
        raise LakeError(
            f"the output has no file {name}", where=self.path, fix="remove the folder and re-run"
        )

    @property
    def digest(self) -> str:
        """Digest of the manifest."""
        return self.manifest.digest()


@dataclass
class Output:
    """An output being written; `meta` ends up in its manifest."""

    lake: Lake
    path: str
    meta: dict[str, Any] = field(default_factory=dict)

    def write_table(self, name: str, table: pa.Table, **options: Any) -> None:
        """Writes a Parquet file below the output."""
        with self.open(name) as stream:
            pq.write_table(table, stream, **{"compression": "zstd", **options})

    def write_bytes(self, name: str, content: bytes) -> None:
        """Writes a file below the output."""
        with self.open(name) as stream:
            stream.write(content)

    def open(self, name: str) -> AbstractContextManager[pa.NativeFile]:
        """Opens a new file below the output for writing (see `Lake.open_output`)."""
        return self.lake.open_output(f"{self.path}/{name}")

    def uri(self, name: str = "") -> str:
        """Location of a file below the output for a process that opens the lake itself."""
        return f"{self.path}/{name}" if name else self.path


class Lake:
    """A folder or bucket of daily data sets.

    Args:
        url: A local path or a URL that `pyarrow.fs` understands (`s3://bucket/prefix`).
    """

    def __init__(self, url: str) -> None:
        self.url = url if "://" in url else str(Path(url).absolute())
        try:
            self.fs, self.root = pafs.FileSystem.from_uri(self.url)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise LakeError(
                f"not a location that the lake can use: {error}",
                where=url,
                fix="give a local path or a URL such as s3://bucket/prefix",
            ) from error
        self.is_local = isinstance(self.fs, pafs.LocalFileSystem)

    # Files -------------------------------------------------------------------------------

    def abspath(self, path: str) -> str:
        """Path inside the file system `fs`."""
        return f"{self.root}/{path}" if path else self.root

    def local_path(self, path: str) -> Path:
        """Path on this machine's disk.

        Raises:
            LakeError: The lake is not on a local disk.
        """
        if not self.is_local:
            raise LakeError("this needs a lake on a local disk", where=self.url, fix="copy it")
        return Path(self.abspath(path))

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        return bool(self.fs.get_file_info(self.abspath(path)).type != pafs.FileType.NotFound)

    def open_input(self, path: str) -> pa.NativeFile:
        """Opens a file for random reading.

        Raises:
            DataError: The file is not there or cannot be read.
        """
        try:
            return self.fs.open_input_file(self.abspath(path))
        except OSError as error:
            raise DataError(
                f"cannot open the file: {error}",
                where=f"{self.url}/{path}",
                fix="check that it was not removed and that this user may read it",
            ) from error

    @contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        """Opens a new file for writing; missing folders are created.

        It gets its name when it is whole: a worker that was given up for dead may write a file
        that others read already, and they must see the old or the new content only.
        """
        target = self.abspath(path)
        self.fs.create_dir(target.rsplit("/", 1)[0], recursive=True)
        if not self.is_local:
            # An object appears when its upload ends.
            with self.fs.open_output_stream(target) as stream:
                yield stream
            return
        unfinished = f"{target}.{uuid.uuid4().hex[:8]}{_UNFINISHED}"
        try:
            with self.fs.open_output_stream(unfinished) as stream:
                yield stream
            self.fs.move(unfinished, target)
        except BaseException:
            if self.fs.get_file_info(unfinished).is_file:
                self.fs.delete_file(unfinished)
            raise

    def read_text(self, path: str) -> str:
        """Content of a text file."""
        with self.open_input(path) as stream:
            return bytes(stream.read()).decode("utf-8")

    def write_text(self, path: str, content: str) -> None:
        """Writes a whole text file so that a reader sees the old or the new content only."""
        with self.open_output(path) as stream:
            stream.write(content.encode())

    def read_table(self, path: str, columns: list[str] | None = None) -> pa.Table:
        """Reads one Parquet file."""
        with self.open_input(path) as stream:
            try:
                return pq.ParquetFile(stream).read(columns=columns)
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(
                    f"not a readable Parquet file: {error}",
                    where=f"{self.url}/{path}",
                    fix="deliver the file again",
                ) from error

    def read_tables(self, published: Published, columns: list[str] | None = None) -> pa.Table:
        """Reads all Parquet files of an output, in the order of its manifest."""
        return pa.concat_tables([self.read_table(path, columns) for path in published.tables()])

    def delete(self, path: str) -> None:
        """Removes a folder if it is there."""
        if self.exists(path):
            self.fs.delete_dir(self.abspath(path))

    def list_folders(self, path: str) -> list[str]:
        """Names of the folders directly below a folder, sorted."""
        return sorted(info.base_name for info in self._list(path) if not info.is_file)

    def list_files(self, path: str) -> list[pafs.FileInfo]:
        """The files directly below a folder, by name."""
        found = [info for info in self._list(path) if info.is_file]
        return sorted(found, key=lambda info: info.base_name)

    def _list(self, path: str) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self.abspath(path), allow_not_found=True)
        return list(self.fs.get_file_info(selector))

    # Partitions --------------------------------------------------------------------------

    def days(self, dataset: str) -> list[date]:
        """Days that have a partition folder, complete or not, oldest first.

        Raises:
            DataError: A folder is named like a partition but is not `dt=YYYY-MM-DD`.
        """
        days = []
        for name in self.list_folders(dataset):
            match = _PARTITION.match(name)
            if match:
                days.append(_parse_day(match.group(1), f"{self.url}/{dataset}/{name}"))
            elif "=" in name:
                raise DataError(
                    "a partition folder has another name than dt=YYYY-MM-DD",
                    where=f"{self.url}/{dataset}/{name}",
                    fix="rename it, for example to dt=2026-01-01",
                )
        return sorted(days)

    def partition(self, dataset: str, day: date) -> Published | None:
        """A raw day's partition: None until its manifest or `_SUCCESS` marker is there.

        A partition that only has a marker gets a manifest computed from its Parquet files'
        names, sizes and contents.
        """
        path = f"{dataset}/{partition_name(day)}"
        published = self.find(path)
        if published is not None or not self.exists(f"{path}/{SUCCESS}"):
            return published
        names = [
            info.base_name
            for info in self.list_files(path)
            if info.base_name.endswith(".parquet") and not info.base_name.startswith((".", "_"))
        ]
        if not names:
            raise DataError(
                "the partition is marked complete but holds no Parquet file",
                where=f"{self.url}/{path}",
                fix="deliver the day's files before the marker",
            )
        entries = [self._entry(path, name) for name in names]
        rows = sum(entry.rows or 0 for entry in entries)
        manifest = Manifest(dataset=dataset, day=day, files=tuple(entries), rows=rows)
        return Published(path, manifest)

    def find(self, path: str) -> Published | None:
        """The output published at a folder, if its manifest is there."""
        if not self.exists(f"{path}/{MANIFEST}"):
            return None
        text = self.read_text(f"{path}/{MANIFEST}")
        try:
            return Published(path, Manifest.model_validate_json(text), reused=True)
        except ValidationError as error:
            raise LakeError(
                f"the manifest is damaged: {error.errors()[0]['msg']}",
                where=f"{self.url}/{path}/{MANIFEST}",
                fix="remove the folder and run the step again",
            ) from error

    def open_published(self, path: str) -> Published:
        """The output published at a folder.

        Raises:
            LakeError: There is none.
        """
        published = self.find(path)
        if published is None:
            raise LakeError(
                "the output is missing", where=f"{self.url}/{path}", fix="run its step again"
            )
        return published

    # Publication -------------------------------------------------------------------------

    def build(
        self,
        dataset: str,
        day: date,
        write: Callable[[Output], None],
        *,
        inputs: Mapping[str, str],
        settings: Mapping[str, Any],
    ) -> Published:
        """Publishes a derived data set's day, or returns it when it is there already.

        Args:
            dataset: Name of the data set, for example `counts/item`.
            day: Day of the partition.
            write: Writes the files and fills `meta`; called only when there is work to do.
            inputs: Digest of every input, by name.
            settings: All settings that shape the output.
        """
        key = digest_of({"inputs": dict(inputs), "settings": dict(settings)})[:12]
        path = f"{dataset}/{partition_name(day)}/{key}"
        found = self.find(path)
        if found is not None:
            return found
        return self.publish(path, write, dataset=dataset, day=day, inputs=inputs, settings=settings)

    def publish(
        self,
        path: str,
        write: Callable[[Output], None],
        *,
        dataset: str,
        day: date | None,
        inputs: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Published:
        """Writes an output into a fresh attempt folder below `path`, then its manifest.

        An exception in `write` removes the attempt; a killed process leaves an attempt folder
        that no manifest names.
        """
        output = Output(self, f"{path}/{uuid.uuid4().hex[:8]}")
        try:
            write(output)
            attempt = output.path.rsplit("/", 1)[-1]
            names = sorted(self._walk(output.path))
            for name in names:
                if name.endswith(_UNFINISHED):  # a killed worker left it
                    self.fs.delete_file(self.abspath(f"{output.path}/{name}"))
            names = [name for name in names if not name.endswith(_UNFINISHED)]
            entries = tuple(self._entry(path, f"{attempt}/{name}") for name in names)
            manifest = Manifest(
                dataset=dataset,
                day=day,
                files=entries,
                rows=sum(entry.rows or 0 for entry in entries),
                inputs=dict(inputs or {}),
                settings=json.loads(json.dumps(dict(settings or {}), default=str)),
                meta=json.loads(json.dumps(output.meta, default=str)),
            )
            self.write_text(f"{path}/{MANIFEST}", manifest.model_dump_json(indent=1))
        except BaseException:
            self.delete(output.path)
            raise
        return Published(path, manifest)

    def _walk(self, path: str) -> Iterator[str]:
        selector = pafs.FileSelector(self.abspath(path), recursive=True, allow_not_found=True)
        prefix = self.abspath(path).lstrip("/") + "/"
        for info in self.fs.get_file_info(selector):
            if info.is_file:
                yield info.path.lstrip("/").removeprefix(prefix)

    def _entry(self, folder: str, name: str) -> FileEntry:
        path = f"{folder}/{name}"
        state = xxhash.xxh3_128()
        size = 0
        with self.open_input(path) as stream:
            while block := stream.read(_BLOCK):
                state.update(block)
                size += len(block)
            rows = None
            if name.endswith(".parquet"):
                try:
                    stream.seek(0)
                    rows = pq.read_metadata(stream).num_rows
                except (pa.ArrowInvalid, OSError) as error:
                    raise DataError(
                        f"not a Parquet file: {error}",
                        where=f"{self.url}/{path}",
                        fix="deliver the file again",
                    ) from error
        return FileEntry(path=name, bytes=size, rows=rows, digest=state.hexdigest())


def partition_name(day: date) -> str:
    """Hive-style folder name of a day."""
    return f"dt={day.isoformat()}"


def day_range(first: date, last: date) -> list[date]:
    """All days from `first` to `last`, both included."""
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def _parse_day(text: str, where: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise DataError(
            f"'{text}' is no day of the calendar", where=where, fix="rename the folder"
        ) from error
