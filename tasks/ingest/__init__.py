"""Brings a user's own logs into the lake as daily partitions."""

from __future__ import annotations

from tasks.ingest.mapping import IngestMapping
from tasks.ingest.publication import Existing
from tasks.ingest.report import IngestReport
from tasks.lake import Lake

__all__ = ["IngestMapping", "IngestReport", "ingest"]


def ingest(
    source: str,
    lake: Lake,
    mapping: IngestMapping | None = None,
    *,
    existing: Existing = "refuse",
    scratch: str | None = None,
    run_bytes: int | None = None,
) -> IngestReport:
    """Writes interactions, and items and users if mapped, into the lake's raw daily partitions.

    Rows are read in batches and sorted by day on disk, so memory does not grow with the source.
    A day becomes visible when its manifest is written, after the whole source has been read; a
    killed ingest leaves whole days or nothing, and the same command again finishes the rest. A
    source that is in the lake already is not read again.

    Args:
        source: File, folder, glob or `pyarrow.fs` URL of CSV, TSV, Parquet or other delimited
            files, optionally compressed.
        lake: Where to write.
        mapping: What the files look like; by default usual column names are looked for.
        existing: What to do with days that hold data of another source.
        scratch: Folder for working files; by default the system's.
        run_bytes: Rows held in memory before they go to disk, in bytes; default 64 MiB.

    Raises:
        ConfigError: The mapping does not fit the files.
        DataError: The files cannot be read, have no good row, or a day holds other data.
        LakeError: The lake or the working folder cannot be written.
    """
    # DuckDB and Polars load only in the process that ingests.
    from tasks.ingest.pipeline import Pipeline
    from tasks.ingest.staging import RUN_BYTES

    pipeline = Pipeline(
        lake, mapping or IngestMapping(), existing=existing, run_bytes=run_bytes or RUN_BYTES
    )
    return pipeline.run(source, scratch)
