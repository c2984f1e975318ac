"""What a full or failing disk looks like to the person who has to mend it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.errors import LakeError
from tasks.lake import Lake


@contextmanager
def storage_errors(lake: Lake) -> Iterator[None]:
    """Turns the operating system's errors, also those of workers, into one that says what to do.

    Raises:
        LakeError: The lake could not be read or written; nothing was published.
    """
    try:
        yield
    except OSError as error:
        full = error.errno == errno.ENOSPC or "No space left" in str(error)
        raise LakeError(
            "the lake's disk is full" if full else f"the lake cannot be read or written: {error}",
            where=lake.url,
            fix=(
                "free some space, then run the step again; finished outputs are kept"
                if full
                else "check the disk or the object store, then run the step again"
            ),
        ) from error
