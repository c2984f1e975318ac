"""Errors that the models raise on purpose."""

from __future__ import annotations


class ModelError(Exception):
    """Base of the errors of this package."""


class BundleError(ModelError):
    """A model bundle is incomplete, damaged or mixed from several models."""


class QualityError(ModelError):
    """A bundle would serve worse answers than its settings allow."""


class CheckpointError(ModelError):
    """A checkpoint does not belong to this job, or cannot be loaded on these ranks."""


class FencedError(CheckpointError):
    """Other ranks have taken the place of these, which may commit nothing any more."""


class MemoryShortageError(ModelError):
    """A rank would need more memory than it has."""


class ExamplesError(ModelError):
    """A file of examples cannot be used; names the file and, where known, the row.

    Args:
        what: What is wrong.
        file: The file.
        row: Row in the file, counted from 0.
    """

    def __init__(self, what: str, file: str, row: int | None = None) -> None:
        self.what = what
        self.file = file
        self.row = row
        where = file if row is None else f"{file}, row {row}"
        super().__init__(f"{what} ({where})")

    def __reduce__(self) -> tuple[object, ...]:
        return (ExamplesError, (self.what, self.file, self.row))


class WarmStartError(ModelError):
    """An earlier model cannot be continued by this training."""


class TrainingStopped(ModelError):
    """Training was asked to stop (SIGTERM); a checkpoint was written first."""
