"""One error class per cause, so that a scheduler can tell what is worth a retry.

Every message answers three questions: what happened, where (file, column, row,
key or line), and what the reader should do about it.
"""

from __future__ import annotations


class TailtowerError(Exception):
    """Base of every error that this product raises on purpose.

    Args:
        what: What happened, as a sentence.
        where: The file, column, row, key or line it happened at.
        fix: What the reader should do.
    """

    #: A transient error may be retried unchanged; the others fail again.
    transient = False
    #: Process exit status of a step that ends with this error.
    exit_code = 10

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"  where: {self.where}")
        if self.fix:
            parts.append(f"  fix:   {self.fix}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Dask workers); keyword arguments must survive.
        return (_rebuild, (type(self), self.what, self.where, self.fix))


def _rebuild(
    cls: type[TailtowerError], what: str, where: str | None, fix: str | None
) -> TailtowerError:
    return cls(what, where=where, fix=fix)


class ConfigError(TailtowerError):
    """The configuration or the command line is wrong."""

    exit_code = 11


class DataError(TailtowerError):
    """The input data cannot be used as it is."""

    exit_code = 12


class ContractError(DataError):
    """The data breaks its contract with a blocking rule."""

    exit_code = 13


class PartitionMissingError(TailtowerError):
    """The day's data has not arrived."""

    transient = True
    exit_code = 14


class LakeError(TailtowerError):
    """The lake holds something unexpected, or cannot be read or written."""

    exit_code = 15


class UpstreamError(TailtowerError):
    """A step was started before the step that it needs."""

    exit_code = 16


class TrainingError(TailtowerError):
    """The training job ended without a model."""

    transient = True
    exit_code = 17


class ClusterError(TailtowerError):
    """The Dask cluster cannot be reached, has no workers, or lost one."""

    transient = True
    exit_code = 18


class TrackingError(TailtowerError):
    """The MLflow server or registry cannot be reached or refused a call."""

    transient = True
    exit_code = 19


class NothingToDoError(TailtowerError):
    """The lake ends long before the day that was asked for; a schedule skips such a day."""

    exit_code = 20
